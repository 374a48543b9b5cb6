"""Dropout and attention by PyTorch's own operators, with the random numbers of the compiled loops."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_BITS = 0xFFFFFFFF


def kept(shape: torch.Size, p: float, seed: tuple[int, int]) -> Tensor:
    """Say which elements a dropout keeps: those whose hashed place is at least p * 2^32.

    The place of an element in the flat tensor, modulo 2^32, is mixed with the seed by two rounds of
    multiplications and shifts (constants of "lowbias32" by C. Wellons), so that neighbours and seeds give
    numbers that look independent.

    Args:
        shape: That of the tensor.
        p: In [0, 1).
        seed: Two integers of 32 bits.

    Returns:
        Bool, True for an element that stays.
    """
    low, high = seed
    x = torch.arange(math.prod(shape), dtype=torch.int64) & _BITS
    x = x ^ low
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _BITS
    x = x ^ (x >> 15) ^ high
    x = (x * 0x846CA68B) & _BITS
    x = x ^ (x >> 16)
    return (x >= int(p * 2**32)).reshape(shape)


def dropout_reference(x: Tensor, p: float, seed: tuple[int, int]) -> Tensor:
    """Drop elements; see `lexforge.kernels.encoder.dropout`."""
    return torch.where(kept(x.shape, p, seed), x / (1 - p), 0)


def attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    p: float,
    seed: tuple[int, int],
) -> Tensor:
    """Attend; see `lexforge.kernels.encoder.attention`."""
    scores = scale * (query @ key.mT)  # [B, H, L, K]
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(dim=-1)
    if mask is not None:
        weights = weights.masked_fill(~mask.any(dim=-1, keepdim=True), 0)
    return dropout_reference(weights, p, seed) @ value
