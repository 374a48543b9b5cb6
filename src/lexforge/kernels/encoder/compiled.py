"""Dropout and attention on a CPU: compiled passes over the elements, and products by PyTorch.

The passes take no more threads than PyTorch may, so that ranks on one machine do not get into each other's
way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from lexforge.kernels.encoder.passes import drop, softmax, softmax_backward
from lexforge.kernels.parallel import at_most

_LOG2_E = 1.4426950408889634


class CompiledDropout(torch.autograd.Function):
    """Dropout that stores its seed in place of a mask; see `lexforge.kernels.encoder.dropout`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, seed: tuple[int, int]) -> Tensor:
        """Drop elements."""
        ctx.p, ctx.seed = p, seed
        return _dropped(x, p, seed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Drop the gradients of the same elements."""
        return _dropped(gradient, ctx.p, ctx.seed), None, None


class CompiledAttention(torch.autograd.Function):
    """Attention that stores its weights before dropout; see `lexforge.kernels.encoder.attention`."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float,
        p: float,
        seed: tuple[int, int],
    ) -> Tensor:
        """Attend; the weights are computed in place of the scores."""
        batch, heads, length, _ = query.shape
        rows = tuple(x.flatten(0, 1) for x in (query, key, value))  # [B * H, L or K, D or E]
        weights = torch.bmm(rows[0], rows[1].mT)  # [B * H, L, K]
        if mask is None:
            bias = torch.zeros(1, 1, key.shape[2])
        else:
            bias = torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)[:, 0]  # [B or 1, L or 1, K]
        dropped = torch.empty_like(weights)
        texts_of_bias = batch // bias.shape[0]  # that share the rows of one
        with at_most(torch.get_num_threads()):
            softmax(
                _flat(weights),
                bias.flatten(0, 1).numpy(),
                heads * length * texts_of_bias,
                length if bias.shape[1] == length else 1,
                np.float32(scale * _LOG2_E),
                _flat(dropped),
                *_numbers(p, seed),
            )
        ctx.save_for_backward(*rows, weights)
        ctx.settings = scale, p, seed, heads
        return torch.bmm(dropped, rows[2]).unflatten(0, (batch, heads))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Make the weights after dropout again, and what the scores get, in one pass."""
        query, key, value, weights = ctx.saved_tensors
        scale, p, seed, heads = ctx.settings
        gradient = gradient.flatten(0, 1)  # [B * H, L, E]
        of_scores = torch.bmm(gradient, value.mT)  # those of the weights, in place of which the pass writes
        dropped = torch.empty_like(weights)
        with at_most(torch.get_num_threads()):
            softmax_backward(
                _flat(weights), _flat(of_scores), np.float32(scale), _flat(dropped), *_numbers(p, seed)
            )
        gradients = (
            torch.bmm(of_scores, key),
            torch.bmm(of_scores.mT, query),
            torch.bmm(dropped.mT, gradient),
        )
        return (*(x.unflatten(0, (-1, heads)) for x in gradients), None, None, None, None)


def _dropped(x: Tensor, p: float, seed: tuple[int, int]) -> Tensor:
    x = x.detach().contiguous()
    result = torch.empty_like(x)
    with at_most(torch.get_num_threads()):
        drop(_array(x).reshape(-1), _array(result).reshape(-1), *_numbers(p, seed))
    return result


def _numbers(p: float, seed: tuple[int, int]) -> tuple[np.uint32, np.uint32, np.uint32, np.float32]:
    """The seed, the smallest hash of an element that stays, and its factor."""
    return np.uint32(seed[0]), np.uint32(seed[1]), np.uint32(int(p * 2**32)), np.float32(1 / (1 - p))


def _array(x: Tensor) -> NDArray[Any]:
    """The memory of a tensor; bfloat16, which numpy lacks, as its bits."""
    array: NDArray[Any] = (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()
    return array


def _flat(x: Tensor) -> NDArray[Any]:
    """`[B * H, L, K]` -> `[B * H * L, K]`."""
    return _array(x).reshape(-1, x.shape[-1])
