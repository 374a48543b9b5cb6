"""The SPLADE head in PyTorch without the logits `[B, L, V]`: tiles of the vocabulary times unpadded tokens.

Forward. Bias, relu and log1p are monotone and, for one term, the same at every token, so they commute with
the maximum: a tile `weight[i:j] @ tokens.T` is reduced over the tokens of each row while it lies in cache,
and bias and activation then touch `[B, V]` numbers instead of `[B, L, V]`. Rows of like length share a
product; a shorter one repeats its last token, which changes no maximum. For training the winning token of
each active (row, term) pair is read from the same tile: from the active pairs alone where fewer than half of
a tile's pairs are active, from the whole tile otherwise. On a CPU float32 inputs may be screened first by a
narrow product (`screening`), which gives the same maxima in less time where few pairs are active;
`choice` measures whether this processor gains by it.

Backward. With z = relu(logit of the winning token), log1p has the slope 1 / (1 + z), and log1p applied twice
1 / ((1 + z) (1 + log1p(z))). An active pair of gradient g adds g * weight[v] to its token and g * token to
its term; inactive pairs add nothing. Both are weighted sums of gathered rows, taken in a fixed order and in
blocks: a token that wins thousands of terms would gather the rounding of thousands of additions otherwise.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lexforge.kernels.splade_head.choice import chosen_screens
from lexforge.kernels.splade_head.plain import plain_maximum
from lexforge.kernels.splade_head.screening import Groups, HeadBatch, VocabularyPart, screened_maximum

# Measured on two Zen 4 cores: such a product stays in the last-level cache and is as fast as the bare one;
# a GPU wants launches that fill it.
TILE_TERMS = 8192
FIRST_TERMS = 1024  # the first tile where a screen is tried: it shows soon whether too much is active
TILE_TOKENS = {"cpu": 256, "other": 8192}
# Measured for sums of 10 to 30,000 rows with AVX2 and AVX-512: in blocks of 32 their largest error is 0.3 to
# 0.8 of that of a float32 matrix product; with one row added after another it is up to 12 times as large.
ROWS_IN_BLOCK = 32
ROWS_AT_ONCE = 65_536


def splade_head_tiled(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    attention_mask: Tensor,
    double_log1p: bool = False,
    product_dtype: torch.dtype | None = None,
) -> Tensor:
    """The tiled implementation of `splade_head`; arguments and result as there.

    `product_dtype` is the dtype to which hidden and weight are cast for the products, as autocast asks; None
    takes that of hidden. The gradients have the dtypes of the inputs and are not rounded to this one.
    """
    inputs = [t for t in (hidden, weight, bias) if t is not None]
    training = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    dtype = product_dtype or hidden.dtype
    return _TiledHead.apply(hidden, weight, bias, attention_mask, double_log1p, dtype, training)


class _TiledHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        attention_mask: Tensor,
        double_log1p: bool,
        product_dtype: torch.dtype,
        training: bool,
    ) -> Tensor:
        groups = token_groups(attention_mask.bool())
        flat = hidden.reshape(-1, hidden.shape[2])
        states = flat.to(product_dtype)  # [B * L, D]; the weight is cast tile by tile
        rows, terms = attention_mask.shape[0], len(weight)
        dtype = torch.float64 if product_dtype == torch.float64 else torch.float32
        maximum = torch.full((rows, terms), -torch.inf, dtype=dtype, device=weight.device)
        # Places of the winning tokens, -1 where a pair is inactive.
        winner = torch.full(maximum.shape, -1, dtype=torch.int32, device=weight.device) if training else None
        batch = HeadBatch(states, groups, weight, bias, maximum, winner)
        screens = chosen_screens(states, weight, groups)
        left = vocabulary_parts(terms, len(groups), first=FIRST_TERMS if screens else TILE_TERMS)
        for screen in screens:  # each leaves what it is no good for to the next
            left = screened_maximum(batch, screen, left)
        plain_maximum(batch, left)
        out = maximum.relu_()
        divisor = 1 + out if training else None  # [B, V], the slope of the activation is 1 / divisor
        out = out.log1p_()
        if double_log1p:
            divisor = divisor.mul_(1 + out) if divisor is not None else None
            out = out.log1p_()
        if training:
            # The inputs themselves are kept, by reference, and not their casts.
            ctx.save_for_backward(hidden, weight, winner, divisor)
            ctx.product_dtype, ctx.bias_dtype = product_dtype, None if bias is None else bias.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, winner, divisor = ctx.saved_tensors
        flat = hidden.reshape(-1, hidden.shape[2])  # [B * L, D]
        active = winner >= 0  # [B, V]
        grad_logits = (grad_out / divisor).masked_fill_(~active, 0.0)  # [B, V], of the largest logits
        terms, rows = active.t().nonzero(as_tuple=True)  # [P] each, by ascending term
        places, grad = winner[rows, terms], grad_logits[rows, terms]
        grad_hidden = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            by_place, order = places.sort(stable=True)
            factor = weight.to(ctx.product_dtype)  # [V, D], as the products rounded it
            grad_flat = sum_of_rows(factor, terms[order], by_place, grad[order], len(flat), flat.dtype)
            grad_hidden = grad_flat.view(hidden.shape)
        if ctx.needs_input_grad[1]:
            factor = flat.to(ctx.product_dtype)  # [B * L, D], as the products rounded it
            grad_weight = sum_of_rows(factor, places, terms, grad, len(weight), weight.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = grad_logits.sum(0).to(ctx.bias_dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def token_groups(mask: Tensor) -> Groups:
    """Gather the rows of a bool mask `[B, L]`, longest first, into groups of like length.

    Returns:
        For each group its rows `[n]` and the places of their tokens in `hidden.view(B * L, D)`,
        `[n, longest]`, where a shorter row repeats its last token. Empty rows are in no group.
    """
    lengths = mask.sum(1)
    slots = torch.arange(mask.shape[1], device=mask.device)
    kept_first = mask.byte().argsort(dim=1, descending=True, stable=True)
    last = (lengths - 1).clamp(min=0).unsqueeze(1)
    places = kept_first.gather(1, torch.minimum(slots.expand_as(mask), last))
    places += torch.arange(len(mask), device=mask.device).unsqueeze(1) * mask.shape[1]
    lengths, order = lengths.sort(descending=True, stable=True)
    budget = TILE_TOKENS["cpu" if mask.device.type == "cpu" else "other"]
    counts = [length for length in lengths.tolist() if length > 0]
    starts = [0] if counts else []
    for row, length in enumerate(counts):
        longest = counts[starts[-1]]
        tokens = (row - starts[-1]) * longest
        full = tokens > 0 and tokens + longest > budget
        if full or (4 * length < 3 * longest and 4 * tokens > budget):
            starts.append(row)
    ends = [*starts[1:], len(counts)]
    return [
        (order[start:end], places[order[start:end], : counts[start]])
        for start, end in zip(starts, ends, strict=False)
    ]


def vocabulary_parts(terms: int, groups: int, first: int) -> list[VocabularyPart]:
    """Every tile of `terms` terms, the first one of `first`, with every group; those of a tile in turn."""
    ends = range(min(first, terms), terms + TILE_TERMS, TILE_TERMS)
    starts = [0, *ends[:-1]]
    tiles = [slice(start, min(end, terms)) for start, end in zip(starts, ends, strict=True) if start < terms]
    return [(tile, index) for tile in tiles for index in range(groups)]


def sum_of_rows(
    table: Tensor,
    index: Tensor,
    bag: Tensor,
    scale: Tensor,
    bags: int,
    dtype: torch.dtype,
) -> Tensor:
    """out[k] = sum of scale[i] * table[index[i]] over bag[i] == k, in blocks.

    Adding n numbers one after another is off by at most n rounding units (float32: 2^-24) of the sum of their
    absolute values; in blocks of m numbers, then blocks of the sums of blocks and so on, by at most
    m ceil(log n / log m) units (Higham, "The accuracy of floating point summation", SIAM J. Sci. Comput. 14,
    1993, section 3). Here m is `ROWS_IN_BLOCK`.

    Args:
        table: `[T, D]` float.
        index: `[P]` integer, rows of `table`.
        bag: `[P]` integer, ascending.
        scale: `[P]` float32 or float64, the dtype in which the sums are taken.
        bags: Number of sums.
        dtype: The dtype of the result.

    Returns:
        `[bags, D]` of that dtype, 0 for an empty bag.
    """
    rows, index = table.to(scale.dtype), index.long()
    counts = torch.bincount(bag, minlength=bags)  # [bags]
    if not (counts > ROWS_IN_BLOCK).any():
        return _sum_in_blocks(rows, index, counts, scale).to(dtype)
    # Whole bags of about `ROWS_AT_ONCE` rows at a time, so that the sums of their blocks take little memory.
    starts = _offsets(counts)
    wanted = torch.arange(0, len(index), ROWS_AT_ONCE, device=index.device)
    cuts = F.pad(torch.searchsorted(starts, wanted), (0, 1), value=bags).unique()  # bags, 0 to `bags`
    sums = [
        _sum_in_blocks(rows, index[of_rows], counts[of_bags], scale[of_rows])
        for of_rows, of_bags in zip(_slices(starts[cuts]), _slices(cuts), strict=True)
    ]
    total = sums[0] if len(sums) == 1 else torch.cat(sums)
    return total.to(dtype)


def _sum_in_blocks(table: Tensor, index: Tensor, counts: Tensor, scale: Tensor | None) -> Tensor:
    """The sums of `sum_of_rows`, `[bags, D]`, for bags of `counts` rows in turn; no scale means ones."""
    starts = _offsets(counts)
    blocks = (counts + ROWS_IN_BLOCK - 1) // ROWS_IN_BLOCK  # [bags]
    several = bool((blocks > 1).any())
    if several:  # sum each block first
        owner = torch.repeat_interleave(blocks)  # [all blocks], the bag of each
        place = torch.arange(len(owner), device=owner.device) - _offsets(blocks)[owner]
        starts = F.pad(starts[owner] + place * ROWS_IN_BLOCK, (0, 1), value=len(index))
    sums = F.embedding_bag(
        index, table, starts, mode="sum", per_sample_weights=scale, include_last_offset=True
    )
    if not several:
        return sums
    return _sum_in_blocks(sums, torch.arange(len(sums), device=sums.device), blocks, None)


def _offsets(counts: Tensor) -> Tensor:
    """Where each of consecutive bags of `counts` rows starts, and where the last one ends: `[bags + 1]`."""
    return F.pad(counts.cumsum(0), (1, 0))


def _slices(cuts: Tensor) -> list[slice]:
    """The slices from each number to the next."""
    return [slice(first, end) for first, end in pairwise(cuts.tolist())]
