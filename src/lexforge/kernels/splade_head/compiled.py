"""The SPLADE head as operators that a compiler calls and does not look into.

The head groups rows by their length and reads the active pairs alone, so its inner shapes depend on the data,
and `torch.compile` can neither trace them nor lower the oneDNN product that the head calls. The two operators
below tell the compiler what it needs: the shapes of the outputs, and that the second is the gradient of the
first. The work is that of `splade_head_tiled`, bit for bit. Outside a compiler the head does without them,
because calling an operator of Python costs some microseconds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lexforge.kernels.splade_head.tiled import tiled_backward, tiled_forward


def splade_head_compiled(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    attention_mask: Tensor,
    double_log1p: bool,
    product_dtype: torch.dtype,
) -> Tensor:
    """The implementation "tiled" of `splade_head` within `torch.compile`; arguments as there."""
    inputs = [tensor for tensor in (hidden, weight, bias) if tensor is not None]
    training = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    return head_operator(hidden, weight, bias, attention_mask, double_log1p, product_dtype, training)[0]


@torch.library.custom_op("lexforge::splade_head", mutates_args=())
def head_operator(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    attention_mask: Tensor,
    double_log1p: bool,
    product_dtype: torch.dtype,
    training: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    out, winner, divisor = tiled_forward(
        hidden, weight, bias, attention_mask, double_log1p, product_dtype, training
    )
    # An operator returns tensors only; what is not wanted is empty.
    return out, _or_empty(winner, out, torch.int32), _or_empty(divisor, out, out.dtype)


@head_operator.register_fake
def _(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    attention_mask: Tensor,
    double_log1p: bool,
    product_dtype: torch.dtype,
    training: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.float64 if product_dtype == torch.float64 else torch.float32
    out = hidden.new_empty(hidden.shape[0], weight.shape[0], dtype=dtype)  # [B, V]
    kept = out.shape if training else (0,)
    return out, out.new_empty(kept, dtype=torch.int32), out.new_empty(kept)


@torch.library.custom_op("lexforge::splade_head_backward", mutates_args=())
def head_backward_operator(
    grad_out: Tensor,
    hidden: Tensor,
    weight: Tensor,
    winner: Tensor,
    divisor: Tensor,
    product_dtype: torch.dtype,
    bias_dtype: torch.dtype | None,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    gradients = tiled_backward(grad_out, hidden, weight, winner, divisor, product_dtype, bias_dtype, wanted)
    of_hidden, of_weight, of_bias = gradients
    return (
        _or_empty(of_hidden, hidden, hidden.dtype),
        _or_empty(of_weight, weight, weight.dtype),
        _or_empty(of_bias, weight, bias_dtype or weight.dtype),
    )


@head_backward_operator.register_fake
def _(
    grad_out: Tensor,
    hidden: Tensor,
    weight: Tensor,
    winner: Tensor,
    divisor: Tensor,
    product_dtype: torch.dtype,
    bias_dtype: torch.dtype | None,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (hidden.shape, weight.shape, weight.shape[:1])
    dtypes = (hidden.dtype, weight.dtype, bias_dtype or weight.dtype)
    of_hidden, of_weight, of_bias = (
        hidden.new_empty(shape if want else (0,), dtype=dtype)
        for shape, dtype, want in zip(shapes, dtypes, wanted, strict=True)
    )
    return of_hidden, of_weight, of_bias


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    hidden, weight, bias, _, _, product_dtype, _ = inputs
    _, winner, divisor = output
    ctx.mark_non_differentiable(winner, divisor)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(hidden, weight, winner, divisor)
    ctx.product_dtype, ctx.bias_dtype = product_dtype, None if bias is None else bias.dtype


def _gradients(ctx: Any, grad_out: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    wanted = list(ctx.needs_input_grad[:3])
    if grad_out is None:
        return (None,) * 7
    gradients = head_backward_operator(
        grad_out, *ctx.saved_tensors, ctx.product_dtype, ctx.bias_dtype, wanted
    )
    asked = (gradient if want else None for gradient, want in zip(gradients, wanted, strict=True))
    return *asked, None, None, None, None


head_operator.register_autograd(_gradients, setup_context=_keep)


def _or_empty(tensor: Tensor | None, like: Tensor, dtype: torch.dtype) -> Tensor:
    return like.new_empty((0,), dtype=dtype) if tensor is None else tensor
