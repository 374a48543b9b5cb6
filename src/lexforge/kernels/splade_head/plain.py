"""Maxima over tokens from the plain product: a tile of terms times a group's tokens, reduced at once."""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor

from lexforge.kernels.splade_head.screening import HeadBatch, VocabularyPart

_ONEDNN_LINEAR = (
    getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
)


def plain_maximum(batch: HeadBatch, parts: list[VocabularyPart]) -> None:
    """Write the largest logits, and the places of their tokens, of some parts by the product itself.

    Args:
        batch: What is multiplied and filled.
        parts: What is to be filled; those of a tile stand together.
    """
    flat, groups, weight, bias, maximum, winner = batch
    tokens = {index: flat.index_select(0, groups[index][1].flatten()) for index in {i for _, i in parts}}
    longest = max(map(len, tokens.values()), default=0)
    buffer = flat.new_empty(max((tile.stop - tile.start for tile, _ in parts), default=0) * longest)
    for _, same_tile in groupby(parts, key=lambda part: part[0].start):
        weight_tile = None
        for tile, index in same_tile:
            weight_tile = weight[tile].to(flat.dtype) if weight_tile is None else weight_tile
            members, places = groups[index]
            by_row = _product(weight_tile, tokens[index], buffer).view(-1, *places.shape)
            top = by_row.amax(2).to(maximum.dtype)
            if bias is not None:
                top += bias[tile].to(maximum.dtype).unsqueeze(1)
            maximum[members, tile] = top.t()
            if winner is not None:
                _write_winners(winner[:, tile], members, places, by_row, top)


def _product(terms: Tensor, states: Tensor, buffer: Tensor) -> Tensor:
    """`terms [n, D] @ states.T [D, m]`, written into the front of `buffer` where the library allows it.

    On a CPU whose vector units the BLAS of this build leaves unused (MKL on AMD), oneDNN is 1.4 to 1.6 times
    as fast on these shapes (Zen 4, D 128 to 768) and rounds no worse; `torch.mm` reaches it for half
    precision only.
    """
    if _ONEDNN_LINEAR is not None and terms.device.type == "cpu" and terms.dtype == torch.float32:
        product: Tensor = _ONEDNN_LINEAR(terms, states, None, "none", [], "")
        return product
    out = buffer[: len(terms) * len(states)].view(-1, len(states))
    return torch.mm(terms, states.t(), out=out)


def _write_winners(winner: Tensor, members: Tensor, places: Tensor, logits: Tensor, top: Tensor) -> None:
    """Write where the first maximal token of each active pair lies (NaN counts as active).

    Args:
        winner: int32 `[B, tile]`, written in the rows `members`.
        members: `[n]` rows.
        places: `[n, longest]` places of their tokens.
        logits: `[tile, n, longest]`.
        top: `[tile, n]`, their maximum with bias.
    """
    active = (top <= 0).logical_not_()
    terms, rows = active.nonzero(as_tuple=True)
    if 2 * len(terms) < top.numel():
        first = logits[terms, rows].argmax(1)
        winner[members[rows], terms] = places[rows, first].int()
    else:
        first = logits.argmax(2).t()
        winner[members] = torch.where(active.t(), places.gather(1, first), -1).int()
