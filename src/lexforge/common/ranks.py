"""Sums and rows across ranks, with gradients.

Both operations are the identity in a single process. Their backward sums the incoming gradients of all ranks,
which is what makes a loss of joint values right under DistributedDataParallel: that wrapper averages
parameter gradients over R ranks, and each rank's value enters the loss of every rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """The number of ranks; 1 where no process group is initialised."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class _RowsOfAllRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        blocks = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(blocks, tensor.contiguous())
        return torch.cat(blocks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


def first_gathered_row(rows: int) -> int:
    """Where this rank's rows begin in what `rows_of_all_ranks` returns.

    Args:
        rows: B, the number of rows of each rank.

    Returns:
        rank * B; 0 in a single process.
    """
    return dist.get_rank() * rows if world_size() > 1 else 0


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Sum a tensor of equal shape over all ranks; the gradient is summed over all ranks too.

    Args:
        tensor: any shape, floating; the same shape on every rank.

    Returns:
        The sum, on every rank.
    """
    return tensor if world_size() == 1 else _SumOverRanks.apply(tensor)


def rows_of_all_ranks(tensor: Tensor) -> Tensor:
    """Concatenate the rows of all ranks in rank order; each rank receives the gradient of its own rows.

    Args:
        tensor: `[B, ...]` floating; the same shape on every rank (train with `dataloader_drop_last=True`).

    Returns:
        `[R * B, ...]`, equal on every rank.
    """
    return tensor if world_size() == 1 else _RowsOfAllRanks.apply(tensor)
