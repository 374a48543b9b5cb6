"""The Triton SPLADE head under autograd; its kernels and their derivation stand in `kernels`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lexforge.kernels.splade_head.triton import kernels
from lexforge.kernels.splade_head.triton.kernels import tl, triton

_OF_TRITON = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def splade_head_triton(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, attention_mask: Tensor, double_log1p: bool = False
) -> Tensor:
    """The sparse vector of each row, max over its tokens of log1p(relu(logit)), without [B, L, V].

    `lexforge.kernels.splade_head` calls it, says what the arguments and the result are, and checks what holds
    for every implementation: shapes, equal dtypes and one device. Here hidden is float16, bfloat16 or float32
    on a CUDA device. The products run in its dtype, or that of autocast where it is on; their sums, bias and
    everything after them are float32.

    Differentiable, once, in hidden, weight and bias; the first of several tokens with equal maxima takes the
    gradient. Tile sizes are timed at the first call of each (V, D, class of lengths, with or without
    gradient) in a process, unless `tiles` has set them; for given tile sizes result and gradients are equal
    bit for bit from run to run.

    Raises:
        ValueError: If D is 0, hidden has another dtype, or the device is no CUDA device.

    Source: SPLADE with max pooling, Formal et al., arXiv 2109.10086, equation 6; the second log1p: Shen et
    al., arXiv 2504.14839. The derivation stands in `kernels`.
    """
    dtype = hidden.dtype
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
    if dtype not in (torch.float16, torch.bfloat16, torch.float32) or hidden.dtype == torch.float64:
        raise ValueError(f"the Triton SPLADE head takes float16, bfloat16 or float32, got {hidden.dtype}")
    if not hidden.shape[2]:
        raise ValueError(
            f"the Triton SPLADE head takes hidden [B, L, D] with D > 0; got {tuple(hidden.shape)}"
        )
    if hidden.device.type != "cuda" and not kernels.INTERPRETING:
        raise ValueError(f"the Triton SPLADE head takes tensors on one CUDA device, got {hidden.device}")
    inputs = [tensor for tensor in (hidden, weight, bias) if tensor is not None]
    keep_winner = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    return _SpladeHead.apply(hidden, weight, bias, attention_mask, double_log1p, dtype, keep_winner)


def _precision(dtype: torch.dtype) -> str:
    """How float32 is multiplied: as tf32 where PyTorch is told so, else as three products of tf32."""
    if dtype != torch.float32:
        return "ieee"  # products of 16 bits are exact
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"


def _for_products(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in the dtype of the products and with dense rows; itself if it is so already."""
    tensor = tensor.to(dtype)
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class _SpladeHead(torch.autograd.Function):
    """The kernels under autograd; the cast to the product's dtype is inside: no gradient is rounded to it."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        attention_mask: Tensor,
        double_log1p: bool,
        product_dtype: torch.dtype,
        keep_winner: bool,
    ) -> Tensor:
        # The inputs themselves are kept, by reference; their casts last for one kernel.
        for_weight = hidden if ctx.needs_input_grad[1] else None
        for_hidden = weight if ctx.needs_input_grad[0] else None
        ctx.input_dtypes = [None if tensor is None else tensor.dtype for tensor in (hidden, weight, bias)]
        ctx.product_dtype = product_dtype
        hidden, weight = (_for_products(tensor, product_dtype) for tensor in (hidden, weight))
        kept = (attention_mask != 0).contiguous()
        lengths = kept.sum(1, dtype=torch.int32)
        positions = kept.to(torch.uint8).argsort(dim=1, descending=True, stable=True).to(torch.int32)
        with torch.cuda.device_of(hidden):
            score, winner = _best(hidden, weight, bias, positions, lengths, keep_winner)
        activation = score.log1p_()
        if double_log1p:
            activation.log1p_()
        if keep_winner:
            ctx.double_log1p, ctx.shape = double_log1p, hidden.shape
            ctx.save_for_backward(activation, winner, for_weight, for_hidden)
        return activation

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.cuda.device_of(grad):
            grad = grad.contiguous()
            saved = ctx.saved_tensors  # read once: `torch.utils.checkpoint` refuses a second time
            grad_hidden = _grad_hidden(ctx, saved, grad) if ctx.needs_input_grad[0] else None
            grad_weight, grad_bias = _grad_weight_and_bias(ctx, saved, grad)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _best(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    positions: Tensor,
    lengths: Tensor,
    keep_winner: bool,
) -> tuple[Tensor, Tensor]:
    """relu(best + bias) [B, V] float32 and winner [B, V] (empty unless kept), a position in L or -1."""
    (B, L, D), V = hidden.shape, weight.shape[0]
    score = torch.empty(B, V, dtype=torch.float32, device=hidden.device)
    position_dtype = torch.int16 if L <= 2**15 else torch.int32
    winner = torch.empty((B, V) if keep_winner else 0, dtype=position_dtype, device=hidden.device)
    if score.numel():
        order = lengths.argsort(descending=True, stable=True)  # rows of like length share a tile of tokens
        segment = kernels.segment_of(L)
        rows_per_group = kernels.GROUP_BYTES // max(1, L * D * hidden.element_size())
        kernels.forward_kernel[
            lambda config: (
                triton.cdiv(V, config["BLOCK_V"]) * triton.cdiv(B, max(1, config["BLOCK_T"] // segment)),
            )
        ](
            hidden, weight, weight if bias is None else bias.contiguous(), order, positions[order],
            lengths[order], score, winner,
            B, L, V, D, hidden.stride(0), hidden.stride(1), weight.stride(0), rows_per_group, segment,
            HAS_BIAS=bias is not None, KEEP_WINNER=keep_winner, PRECISION=_precision(weight.dtype),
        )  # fmt: skip
    return score, winner


def _grad_hidden(ctx: Any, saved: tuple[Tensor, ...], grad: Tensor) -> Tensor:
    activation, winner, _, weight = saved
    # The kernel narrows the rows that it reads, which are those of active terms.
    weight = weight if weight.stride(-1) == 1 else weight.contiguous()
    (B, L, D), V = ctx.shape, weight.shape[0]
    grad_hidden = torch.empty(B, L, D, dtype=ctx.input_dtypes[0], device=grad.device)
    if not V:
        return grad_hidden.zero_()
    if grad_hidden.numel():
        buckets, blocks = triton.cdiv(L, kernels.BUCKET), triton.cdiv(V, kernels.LIST_BLOCK)
        terms = torch.empty(B, V, dtype=torch.int32, device=grad.device)
        counts = torch.empty(B, buckets * blocks, dtype=torch.int32, device=grad.device)
        sizes = {"BUCKET": kernels.BUCKET, "BLOCK": kernels.LIST_BLOCK}
        list_terms = kernels.terms_by_token_kernel[(B * blocks,)]
        list_terms(winner, counts, terms, V, buckets, PLACE=False, **sizes)
        ends = counts.cumsum(1, dtype=torch.int32)
        list_terms(winner, ends, terms, V, buckets, PLACE=True, **sizes)
        kernels.grad_hidden_kernel[
            lambda config: (triton.cdiv(L, config["BLOCK_T"]) * triton.cdiv(D, config["BLOCK_D"]) * B,)
        ](
            grad, activation, winner, terms, ends, weight, grad_hidden,
            L, V, D, weight.stride(0), blocks, triton.next_power_of_2(L),
            DTYPE=_OF_TRITON[ctx.product_dtype], DOUBLE=ctx.double_log1p,
            PRECISION=_precision(ctx.product_dtype), BUCKET=kernels.BUCKET,
        )  # fmt: skip
    return grad_hidden


def _grad_weight_and_bias(
    ctx: Any, saved: tuple[Tensor, ...], grad: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Each None if it is not asked for; one kernel lists the rows of each term and sums up the bias."""
    activation, winner, hidden, _ = saved
    wants_weight, wants_bias = ctx.needs_input_grad[1:3]
    (B, V), D = activation.shape, ctx.shape[2]
    if not (wants_weight or wants_bias):
        return None, None
    rows_dtype = torch.int16 if B <= 2**15 else torch.int32
    rows = torch.empty((B, V) if wants_weight else 0, dtype=rows_dtype, device=grad.device)
    count = torch.empty(V if wants_weight else 0, dtype=torch.int32, device=grad.device)
    grad_bias = torch.empty(V, dtype=ctx.input_dtypes[2], device=grad.device) if wants_bias else None
    if V:
        kernels.rows_by_term_kernel[(triton.cdiv(V, kernels.ROWS_BLOCK),)](
            grad, activation, rows, count, count if grad_bias is None else grad_bias, B, V,
            DOUBLE=ctx.double_log1p, LIST=wants_weight, BIAS=wants_bias, BLOCK=kernels.ROWS_BLOCK,
        )  # fmt: skip
    if not wants_weight:
        return None, grad_bias
    hidden = _for_products(hidden, ctx.product_dtype)
    grad_weight = torch.empty(V, D, dtype=ctx.input_dtypes[1], device=grad.device)
    if V:
        kernels.grad_weight_kernel[
            lambda config: (triton.cdiv(V, config["BLOCK_V"]) * triton.cdiv(D, config["BLOCK_D"]),)
        ](
            grad, activation, winner, rows, count, hidden, grad_weight,
            V, D, hidden.stride(0), hidden.stride(1), DOUBLE=ctx.double_log1p,
        )  # fmt: skip
    return grad_weight, grad_bias
