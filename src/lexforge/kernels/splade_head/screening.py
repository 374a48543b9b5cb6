"""Exact maxima over tokens from a narrow product: it finds the tokens that can win, float32 decides.

A processor may multiply bfloat16 numbers or whole numbers of 8 bits several times as fast as float32 ones,
and few pairs of a row and a term are active. With the narrow product p of a token and a term and its error E
(`screens`), taken for the longest token of a row and the largest p of a row and a term,

- a pair with p + E + bias <= 0 is inactive,
- only a token whose product is at least p - 2E can attain the maximum of its pair, and
- only a token whose product is at least -bias - E can make its pair active.

The products of what remains, one to three tokens for each active pair, are taken again in float32 from
the vectors themselves: maxima and winners are those of float32, whatever the narrow product said, and
every screen gives the same bits.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from lexforge.kernels.splade_head.screens import Narrow, Screen

CHECKED_AT_ONCE = 2048  # vectors of each factor, so that they stay in the second-level cache
# Of the pairs of a part: above this share it is refused. In the sweeps of `bench_splade_head.py` on an AMD
# EPYC (family 26) the screen in 8 bits is as slow as the plain product at .31 (D = 128), .67 (384), 1 (768).
_MOST_POSSIBLE = 0.4
_MOST_REFUSED = 0.25  # of the parts: above this share the rest of a batch is not screened
_LARGEST = 1e35  # of a product of lengths: then products stay far from the end of the range
_SUMS = 2.0**-20  # and D times 2^-23: s in `screens`
_SAFETY = 1.02  # for the second order of the result's rounding, and the rounding of the bounds themselves

Groups = list[tuple[Tensor, Tensor]]
"""Rows `[m]` and the places `[m, L]` of their tokens."""
VocabularyPart = tuple[slice, int]
"""A tile of terms, and the group of rows that it is multiplied with."""


class HeadBatch(NamedTuple):
    """The two factors of a batch, and what the head fills part by part."""

    flat: Tensor  # [B * L, D], tokens and padding, in the dtype of the products
    groups: Groups  # as `tiled` groups the rows
    weight: Tensor  # [V, D] of any float dtype
    bias: Tensor | None  # [V]
    maximum: Tensor  # [B, V] float, -inf; gets the largest logits, or for an inactive pair one not above 0
    winner: Tensor | None  # [B, V] int32, -1 (inactive); gets places in `flat`; None if they are not wanted


class Factor(NamedTuple):
    """One factor of the product of a part, with its share of the bound: E is the product of both shares."""

    narrow: Narrow
    bound: Tensor  # [n, 2] of the terms, [2, m] of the tokens
    longest: float  # length of a vector; NaN if a number is not finite


class Candidates(NamedTuple):
    """Pairs that may be active, `[P]`, and the tokens that may win them, `[Q]`, in the order of the pairs."""

    rows: Tensor  # [P], of the batch
    terms: Tensor  # [P]
    pair: Tensor  # [Q], ascending, 0 to P - 1
    place: Tensor  # [Q], of the token in `flat`, ascending within a pair


def screened_maximum(batch: HeadBatch, screen: Screen, parts: list[VocabularyPart]) -> list[VocabularyPart]:
    """Write the largest logits, and the places of their tokens, of the parts that the screen is good for.

    Args:
        batch: With factors in float32.
        screen: The narrow format.
        parts: What is to be filled; those of a tile stand together.

    Returns:
        The parts that are refused, of which nothing is written: a vector is not finite, too many pairs may be
        active, or so many parts before were refused that the rest is not tried.
    """
    states = [token_factor(screen.narrow(batch.flat[places])) for _, places in batch.groups]
    terms_at_once = max((tile.stop - tile.start for tile, _ in parts), default=0)
    tokens_at_once = max((len(each.narrow.values) for each in states), default=0)
    buffer = torch.empty(terms_at_once * tokens_at_once, dtype=screen.products)
    found: list[Candidates] = []
    refused: list[VocabularyPart] = []
    done = pairs = 0
    for _, same_tile in groupby(parts, key=lambda part: part[0].start):
        terms = None
        for tile, index in same_tile:
            if len(refused) > _MOST_REFUSED * done:
                refused.append((tile, index))
                continue
            terms = term_factor(screen.narrow(batch.weight[tile].unsqueeze(1))) if terms is None else terms
            bias = None if batch.bias is None else batch.bias[tile]
            candidates = _find_candidates(terms, states[index], batch.groups[index], bias, screen, buffer)
            done += 1
            if candidates is None:
                refused.append((tile, index))
                continue
            rows, of_tile, pair, place = candidates
            found.append(Candidates(rows, of_tile + tile.start, pair + pairs, place))
            pairs += len(rows)
    if found:
        _decide(batch, Candidates(*map(torch.cat, zip(*found, strict=True))))
    return refused


def _find_candidates(
    terms: Factor,
    tokens: Factor,
    group: tuple[Tensor, Tensor],
    bias: Tensor | None,
    screen: Screen,
    buffer: Tensor,
) -> Candidates | None:
    """What may be active in one part, with terms counted from the tile's first; None if it is refused.

    Args:
        terms: n terms in sets of one.
        tokens: The m * L tokens of the group, in sets of one row.
        group: Rows `[m]` and places `[m, L]`.
        bias: `[n]` or None.
        screen: The narrow format.
        buffer: At least n * m * L numbers of `screen.products`.
    """
    # NaN is not below anything, so that a vector that is not finite is refused.
    if not terms.longest * tokens.longest < _LARGEST:
        return None
    members, places = group
    products = buffer[: len(terms.bound) * places.numel()].view(len(terms.bound), -1)
    screen.multiply(terms.narrow.values, tokens.narrow.values, products)
    by_row = products.view(-1, *places.shape)  # [n, m, L]
    top = screen.largest(by_row).float()  # [n, m], in the units of `products` so far
    units = None
    if screen.products == torch.int32:
        units = torch.outer(terms.narrow.scale, tokens.narrow.scale)  # [n, m]
        top.mul_(units)
    error = terms.bound @ tokens.bound  # [n, m]
    if screen.unit:
        error.add_(top.abs(), alpha=_SAFETY * screen.unit)
    upper = error + top
    if bias is not None:
        upper.add_(bias.unsqueeze(1))
    possible = (upper <= 0).logical_not_().view(-1).nonzero().squeeze(1)  # NaN is possible
    if len(possible) > _MOST_POSSIBLE * upper.numel():
        return None
    error_of = error.view(-1)[possible]
    lowest, term = top.view(-1)[possible] - 2 * error_of, possible // len(members)
    # A bias of NaN rules no token out.
    lowest = torch.fmax(lowest, -error_of if bias is None else -error_of - bias[term])
    if units is not None:
        lowest = (lowest / units.view(-1)[possible]).floor_()
        lowest = lowest.clamp_(-(2.0**30), 2.0**30).to(screen.products)
    near = by_row.flatten(0, 1).index_select(0, possible) >= lowest.unsqueeze(1)
    found = near.view(-1).nonzero().squeeze(1)
    pair, token = found // near.shape[1], found % near.shape[1]
    row = possible % len(members)
    return Candidates(members[row], term, pair, places[row[pair], token])


def term_factor(terms: Narrow) -> Factor:
    """|r_w| + s |w| and |w| + |r_w|, which bound |w'|, for each term."""
    sums = _SUMS + terms.values.shape[1] * 2.0**-23
    bound = torch.stack([terms.rest + sums * terms.length, terms.length + terms.rest], dim=1)
    return Factor(terms, bound.mul_(_SAFETY), float(terms.length.max()))


def token_factor(tokens: Narrow) -> Factor:
    """|h| and |r_h|, the largest of each row."""
    return Factor(tokens, torch.stack([tokens.length, tokens.rest]), float(tokens.length.max()))


def _decide(batch: HeadBatch, found: Candidates) -> None:
    """Write the float32 maxima of the candidates, and their winners where they are wanted."""
    products = _products(batch.flat, found.place, batch.weight, found.terms[found.pair])
    top = products.new_full(found.rows.shape, -torch.inf).scatter_reduce_(0, found.pair, products, "amax")
    logits = top if batch.bias is None else top + batch.bias[found.terms].float()
    batch.maximum[found.rows, found.terms] = logits
    if batch.winner is None:
        return
    nowhere = torch.iinfo(torch.int32).max
    winning = torch.where(products == top[found.pair], found.place, nowhere).int()
    place = winning.new_full(found.rows.shape, nowhere).scatter_reduce_(0, found.pair, winning, "amin")
    batch.winner[found.rows, found.terms] = torch.where(logits <= 0, -1, place)


def _products(flat: Tensor, places: Tensor, weight: Tensor, terms: Tensor) -> Tensor:
    """The float32 products `flat[places[i]] . weight[terms[i]]`, `[Q]`, in two buffers."""
    out = flat.new_empty(len(places))
    left = flat.new_empty(min(CHECKED_AT_ONCE, len(places)), flat.shape[1])
    right = torch.empty_like(left)
    for first in range(0, len(places), CHECKED_AT_ONCE):
        chunk = slice(first, min(first + CHECKED_AT_ONCE, len(places)))
        size = chunk.stop - first
        tokens = torch.index_select(flat, 0, places[chunk], out=left[:size])
        vectors = torch.index_select(weight, 0, terms[chunk], out=right[:size])
        torch.sum(tokens.mul_(vectors), dim=1, out=out[chunk])
    return out
