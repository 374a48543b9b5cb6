"""The SPLADE head in PyTorch without the logits `[B, L, V]`: tiles of the vocabulary times unpadded tokens.

Forward. Bias, relu and log1p are monotone and, for one term, the same at every token, so they commute with
the maximum: a tile `weight[i:j] @ tokens.T` is reduced over the tokens of each row while it lies in cache,
and bias and activation then touch `[B, V]` numbers instead of `[B, L, V]`. For training the winning token of
each active (row, term) pair is read from the same tile: from the active terms alone where fewer than half of
a tile's terms are active, from the whole tile otherwise.

Backward. With y = out[b, v] and t the winning token, dy/dlogit = exp(-y) (for y = log1p(z): 1 / (1 + z)), and
with log1p applied twice exp(-y) * exp(-expm1(y)). An active pair of gradient g adds g * weight[v] to token
t and g * tokens[t] to term v; inactive pairs add nothing. Both are weighted sums of gathered rows, in a
fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# Measured on two Zen 4 cores: products of 4,096 terms with some 256 tokens stay in cache and lose nothing
# to the bare product; a GPU wants launches that fill it.
_TILE_TERMS = 4096
_TILE_TOKENS = {"cpu": 256, "other": 8192}


def splade_head_tiled(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, attention_mask: Tensor, double_log1p: bool = False
) -> Tensor:
    """The tiled implementation; arguments and result as in `splade_head`, autocast already applied."""
    inputs = [t for t in (hidden, weight, bias) if t is not None]
    training = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    return _TiledHead.apply(hidden, weight, bias, attention_mask, double_log1p, training)


class _TiledHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        attention_mask: Tensor,
        double_log1p: bool,
        training: bool,
    ) -> Tensor:
        mask = attention_mask.bool()
        positions = mask.flatten().nonzero().squeeze(1)
        tokens = hidden.reshape(-1, hidden.shape[2])
        if len(positions) < len(tokens):
            tokens = tokens.index_select(0, positions)
        lengths = mask.sum(1).tolist()
        maximum, winner = _maximum_over_tokens(tokens, lengths, weight, bias, training)
        out = maximum.relu_().log1p_()
        if double_log1p:
            out = out.log1p_()
        if training:
            ctx.save_for_backward(tokens, positions, weight, out, winner)
            ctx.shape, ctx.double_log1p = hidden.shape, double_log1p
            ctx.bias_dtype = None if bias is None else bias.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        tokens, positions, weight, out, winner = ctx.saved_tensors
        slope = torch.exp(-out)
        if ctx.double_log1p:
            slope = slope * torch.exp(-torch.expm1(out))
        active = winner >= 0
        grad = torch.where(active, grad_out * slope, 0.0)
        grad_hidden = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            rows, terms = active.nonzero(as_tuple=True)
            order = winner[rows, terms].argsort(stable=True)
            rows, terms = rows[order], terms[order]
            grad_tokens = _sum_of_rows(weight, terms, winner[rows, terms], grad[rows, terms], len(tokens))
            grad_hidden = tokens.new_zeros(ctx.shape)
            grad_hidden.view(-1, ctx.shape[2]).index_copy_(0, positions, grad_tokens)
        if ctx.needs_input_grad[1]:
            terms, rows = active.t().nonzero(as_tuple=True)
            grad_weight = _sum_of_rows(tokens, winner[rows, terms], terms, grad[rows, terms], len(weight))
        if ctx.needs_input_grad[2]:
            grad_bias = grad.sum(0).to(ctx.bias_dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None


def _maximum_over_tokens(
    tokens: Tensor, lengths: list[int], weight: Tensor, bias: Tensor | None, training: bool
) -> tuple[Tensor, Tensor | None]:
    """The largest logit of each row and term (-inf for an empty row), and its token where it is > 0.

    Args:
        tokens: `[T, D]`, the unpadded tokens, row after row.
        lengths: Tokens of each row; B numbers with sum T.
        weight: `[V, D]`.
        bias: `[V]` or None.
        training: Whether the winners are wanted.

    Returns:
        The maximum `[B, V]`, and int32 `[B, V]` indices into `tokens` (-1: inactive) or None unless
        `training`.
    """
    dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
    maximum = torch.full((len(lengths), len(weight)), -torch.inf, dtype=dtype, device=weight.device)
    winner = torch.full(maximum.shape, -1, dtype=torch.int32, device=weight.device) if training else None
    groups = _groups(lengths, _TILE_TOKENS.get(weight.device.type, _TILE_TOKENS["other"]))
    widest = max((stop - start for start, stop, _ in groups), default=0)
    buffer = tokens.new_empty(min(_TILE_TERMS, len(weight)) * widest)
    for first in range(0, len(weight), _TILE_TERMS):
        tile = slice(first, min(first + _TILE_TERMS, len(weight)))
        tile_weight = weight[tile]
        tile_bias = 0.0 if bias is None else bias[tile].to(dtype)
        for start, stop, rows in groups:
            logits = buffer[: len(tile_weight) * (stop - start)].view(len(tile_weight), stop - start)
            torch.mm(tile_weight, tokens[start:stop].t(), out=logits)
            for row, begin, end in rows:
                own = logits[:, begin - start : end - start]
                top = own.amax(1).to(dtype).add_(tile_bias)
                maximum[row, tile] = top
                if winner is not None:
                    _write_winners(winner[row, tile], own, top, begin)
    return maximum, winner


def _write_winners(winner: Tensor, logits: Tensor, top: Tensor, begin: int) -> None:
    """Write the first token that attains the maximum, for the active terms (NaN counts as active)."""
    active = (top <= 0).logical_not_().nonzero().squeeze(1)
    if 2 * len(active) < len(top):
        winner[active] = (logits.index_select(0, active).argmax(1) + begin).int()
    else:
        winner.copy_(torch.where(top <= 0, -1, logits.argmax(1) + begin))


def _groups(lengths: list[int], token_budget: int) -> list[tuple[int, int, list[tuple[int, int, int]]]]:
    """Cut the rows into runs of some `token_budget` tokens (a longer row stands alone); empty rows drop out.

    Returns:
        For each run its first token, its end and its rows as (row, first token, end).
    """
    groups: list[tuple[int, int, list[tuple[int, int, int]]]] = []
    end = 0
    for row, length in enumerate(lengths):
        begin, end = end, end + length
        if length == 0:
            continue
        if groups and end - groups[-1][0] <= token_budget:
            start, _, rows = groups[-1]
            groups[-1] = (start, end, [*rows, (row, begin, end)])
        else:
            groups.append((begin, end, [(row, begin, end)]))
    return groups


def _sum_of_rows(table: Tensor, index: Tensor, bag: Tensor, scale: Tensor, bags: int) -> Tensor:
    """out[k] = sum of scale[i] * table[index[i]] over bag[i] == k, in the dtype of `scale`; `bag` ascends."""
    ends = torch.bincount(bag, minlength=bags).cumsum(0)
    offsets = F.pad(ends, (1, 0))
    wide = table.to(scale.dtype)
    total = F.embedding_bag(
        index.long(), wide, offsets, mode="sum", per_sample_weights=scale, include_last_offset=True
    )
    return total.to(table.dtype)
