"""Sums and rows across ranks, with gradients.

Both operations are the identity in a single process. Their backward sums the incoming gradients of all ranks,
which is what makes a loss of joint values right under DistributedDataParallel: that wrapper averages
parameter gradients over R ranks, and each rank's value enters the loss of every rank.

They are written here because `torch.distributed.nn.functional`, which has the like, is deprecated and warns
from PyTorch 2.13 on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

_T = TypeVar("_T")


def world_size() -> int:
    """The number of ranks; 1 where no process group is initialised."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def from_first_rank(compute: Callable[[], _T]) -> _T:
    """Let the first rank compute something, and return its result on all ranks.

    Args:
        compute: Is called on the first rank only.

    Returns:
        The result, which must be one that pickle takes where there are several ranks.

    Raises:
        Exception: What `compute` raised, on all ranks, so that none of them waits for ever.
    """
    if world_size() == 1:
        return compute()
    outcome: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = compute()
        except Exception as error:
            outcome[1] = error
    dist.broadcast_object_list(outcome, src=0)
    result, failure = outcome
    if failure is not None:
        raise failure
    return cast(_T, result)


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


# PyTorch 2.13 gave the two functions new names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _RowsOfAllRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        tensor, ranks = tensor.contiguous(), dist.get_world_size()
        rows = tensor.new_empty(ranks * tensor.shape[0], *tensor.shape[1:])  # [R * B, ...]
        _all_gather(rows, tensor)
        return rows

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient, ranks = gradient.contiguous(), dist.get_world_size()
        # Each rank receives the sum of its own rows only: 1 / R of what an all-reduce would bring.
        own = gradient.new_empty(gradient.shape[0] // ranks, *gradient.shape[1:])  # [B, ...]
        _reduce_scatter(own, gradient)
        return own


def first_gathered_row(rows: int) -> int:
    """Return where this rank's rows begin in what `rows_of_all_ranks` returns.

    Args:
        rows: B, the number of rows of each rank.

    Returns:
        rank * B; 0 in a single process.
    """
    return dist.get_rank() * rows if world_size() > 1 else 0


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Sum a tensor of equal shape over all ranks; the gradient is summed over all ranks too.

    Args:
        tensor: Any shape, floating; the same shape on every rank.

    Returns:
        The sum, on every rank.
    """
    return tensor if world_size() == 1 else _SumOverRanks.apply(tensor)


def rows_of_all_ranks(tensor: Tensor) -> Tensor:
    """Concatenate the rows of all ranks in rank order; each rank receives the gradient of its own rows.

    Args:
        tensor: `[B, ...]`, floating for a gradient; the same shape on every rank (train with
            `dataloader_drop_last=True`).

    Returns:
        `[R * B, ...]`, equal on every rank.
    """
    if world_size() == 1:
        return tensor
    if tensor.dtype == torch.bool:  # gloo gathers numbers
        return rows_of_all_ranks(tensor.to(torch.uint8)).bool()
    return _RowsOfAllRanks.apply(tensor)


def over_ranks(number: int, device: torch.device, reduce: Literal["MIN", "MAX"]) -> int:
    """Return the smallest or the largest of the numbers of all ranks; all must ask together.

    Args:
        number: That of this rank.
        device: Where the ranks compare their numbers.
        reduce: Which of them is returned.
    """
    if world_size() == 1:
        return number
    reduced = torch.tensor(number, device=device)
    dist.all_reduce(reduced, getattr(dist.ReduceOp, reduce))
    return int(reduced)


def of_all_ranks(own: _T) -> list[_T]:
    """Return what each rank gives, in the order of the ranks; all must ask together.

    Args:
        own: What this rank gives; pickle must take it.
    """
    if world_size() == 1:
        return [own]
    ranks: list[Any] = [None] * world_size()
    dist.all_gather_object(ranks, own)
    return ranks
