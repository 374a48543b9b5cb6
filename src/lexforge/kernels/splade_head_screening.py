"""Exact maxima over tokens from a bfloat16 product: it finds the tokens that can win, float32 decides.

A processor with bfloat16 dot products takes them twice as fast as float32 ones, and few pairs of a row and a
term are active. Let h be a token, w a term and u = 2^-8 the rounding unit of bfloat16. The product p of the
rounded vectors, summed in float32 and rounded to bfloat16, is off by at most (Cauchy-Schwarz)

    |p - h.w| <= E = (2u + u^2 + D 2^-23) |h| |w| + u |p|

(u for the rounding of each factor and of the result; the third term for the sum). So, with the longest token
of a row and the largest p of a row and a term,

- a pair with p + E + bias <= 0 is inactive, and
- only a token whose product is at least p - 2E can attain the maximum of its pair.

The products of what remains, about one token for each active pair, are taken again in float32 from the
vectors themselves: maxima and winners are those of float32, whatever bfloat16 said.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_TILE_TERMS = 8192
_CHECKED_AT_ONCE = 2048  # vectors of each side, so that they stay in the second-level cache
_MOST_PAIRS = 0.25  # measured: above this share of a tile the float32 product is faster
_LARGEST = 1e35  # of a bound: then products stay far from the end of bfloat16's range
_FLUSHED = 1e-17  # added to a length, for subnormal numbers, which bfloat16 units take as 0
_UNIT = 2.0**-8
_SAFETY = 1.02  # for the second order of the result's rounding, and the rounding of the bounds themselves


class _Candidates(NamedTuple):
    """Pairs that may be active, `[P]`, and the tokens that may win them, `[Q]`, in the order of the pairs."""

    rows: Tensor  # [P], of the batch
    terms: Tensor  # [P]
    pair: Tensor  # [Q], ascending, 0 to P - 1
    place: Tensor  # [Q], of the token in `flat`, ascending within a pair


def can_screen(hidden: Tensor, weight: Tensor) -> bool:
    """Whether both are float32, on a CPU with bfloat16 dot products (AVX512-BF16; AMX comes with it)."""
    narrow = hidden.dtype == weight.dtype == torch.float32
    return narrow and hidden.device.type == "cpu" and bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def screened_maximum(
    flat: Tensor,
    rows: int,
    groups: list[tuple[Tensor, Tensor]],
    weight: Tensor,
    bias: Tensor | None,
    training: bool,
) -> tuple[Tensor, Tensor | None] | None:
    """The largest logit of each row and term where it is positive, and the place of its token.

    Args:
        flat: `[B * L, D]` float32, tokens and padding.
        rows: B.
        groups: Rows and the places of their tokens, as `splade_head_tiled` groups them.
        weight: `[V, D]` float32.
        bias: `[V]` or None.
        training: Whether the winners are wanted.

    Returns:
        The maximum `[B, V]` float32, which for an inactive pair is any number not above 0, and int32 `[B, V]`
        places in `flat` (-1: inactive) or None unless `training`. None in place of both where the plain
        product is the better way: a vector is not finite, or too many pairs of a tile may be active.
    """
    found = _screen(flat, groups, weight, bias)
    if found is None:
        return None
    products = _products(flat, found.place, weight, found.terms[found.pair])
    top = products.new_full(found.rows.shape, -torch.inf).scatter_reduce_(0, found.pair, products, "amax")
    logits = top if bias is None else top + bias[found.terms].float()
    maximum = flat.new_full((rows, len(weight)), -torch.inf)
    maximum[found.rows, found.terms] = logits
    if not training:
        return maximum, None
    nowhere = torch.iinfo(torch.int32).max
    winning = torch.where(products == top[found.pair], found.place, nowhere).int()
    place = winning.new_full(found.rows.shape, nowhere).scatter_reduce_(0, found.pair, winning, "amin")
    winner = torch.full(maximum.shape, -1, dtype=torch.int32)
    winner[found.rows, found.terms] = torch.where(logits <= 0, -1, place)
    return maximum, winner


def _screen(
    flat: Tensor, groups: list[tuple[Tensor, Tensor]], weight: Tensor, bias: Tensor | None
) -> _Candidates | None:
    """What may be active, by the bfloat16 product; None as `screened_maximum` says."""
    relative = _SAFETY * (2 * _UNIT + _UNIT**2 + flat.shape[1] * 2.0**-23)
    half, lengths = flat.bfloat16(), _lengths(flat)
    states = [half.index_select(0, places.flatten()) for _, places in groups]
    rounded = half.new_empty(min(_TILE_TERMS, len(weight)), flat.shape[1])
    products = half.new_empty(len(rounded) * max(map(len, states), default=0))
    longest = [relative * lengths[places].amax(1) for _, places in groups]
    found, count = [], 0
    for first in range(0, len(weight), _TILE_TERMS):
        tile = slice(first, first + _TILE_TERMS)
        lengths = _lengths(weight[tile])
        half = rounded[: len(lengths)].copy_(weight[tile])
        for (members, places), tokens, of_row in zip(groups, states, longest, strict=True):
            error = torch.outer(lengths, of_row)
            if not error.max() < _LARGEST:
                return None
            logits = products[: len(half) * len(tokens)].view(len(half), -1)
            logits = torch.mm(half, tokens.t(), out=logits).view(-1, *places.shape)
            top = _largest(logits)
            error.add_(top.abs(), alpha=_SAFETY * _UNIT)
            upper = error + top if bias is None else (error + top).add_(bias[tile].unsqueeze(1))
            possible = (upper <= 0).logical_not_().view(-1).nonzero().squeeze(1)
            if len(possible) > _MOST_PAIRS * upper.numel():
                return None
            lowest = top.view(-1)[possible] - 2 * error.view(-1)[possible]
            near = logits.flatten(0, 1).index_select(0, possible) >= lowest.unsqueeze(1)
            place = near.view(-1).nonzero().squeeze(1)
            pair, token = place // near.shape[1], place % near.shape[1]
            terms, row = possible // len(members), possible % len(members)
            found.append(_Candidates(members[row], terms + first, pair + count, places[row[pair], token]))
            count += len(possible)
    if not found:
        return _Candidates(*(torch.empty(0, dtype=torch.int64) for _ in _Candidates._fields))
    return _Candidates(*map(torch.cat, zip(*found, strict=True)))


def _lengths(vectors: Tensor) -> Tensor:
    return torch.linalg.vector_norm(vectors, dim=1) + _FLUSHED


def _largest(logits: Tensor) -> Tensor:
    """`logits.amax(2)` of finite bfloat16 `[n, m, L]`, three times as fast.

    Read as integers, floats of one sign are in order, the negative ones in descending order.
    """
    bits = logits.view(torch.int16)
    high = bits.amax(2)
    return torch.where(high >= 0, high, bits.amin(2)).view(torch.bfloat16)


def _products(flat: Tensor, places: Tensor, weight: Tensor, terms: Tensor) -> Tensor:
    """The float32 products `flat[places[i]] . weight[terms[i]]`, `[Q]`, in two buffers."""
    out = flat.new_empty(len(places))
    left = flat.new_empty(min(_CHECKED_AT_ONCE, len(places)), flat.shape[1])
    right = torch.empty_like(left)
    for first in range(0, len(places), _CHECKED_AT_ONCE):
        chunk = slice(first, min(first + _CHECKED_AT_ONCE, len(places)))
        size = chunk.stop - first
        tokens = torch.index_select(flat, 0, places[chunk], out=left[:size])
        vectors = torch.index_select(weight, 0, terms[chunk], out=right[:size])
        torch.sum(tokens.mul_(vectors), dim=1, out=out[chunk])
    return out
