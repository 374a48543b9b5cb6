"""The SPLADE vocabulary head: hidden states of a masked language model to one sparse vector a text.

    out[b, v] = max over the tokens t of row b with attention_mask[b, t] != 0 of
                log1p(relu(hidden[b, t] . weight[v] + bias[v]))

(Formal et al., "SPLADE v2", arXiv 2109.10086, equation 6; with `double_log1p` the activation of the
OpenSearch models, Shen et al., arXiv 2504.14839.) One function, three implementations that agree:

- `reference` says the formula and builds the logits `[B, L, V]`;
- `tiled` is PyTorch on any device and never builds them;
- `triton` is the GPU twin, imported only when it is asked for.

Within `torch.compile`, `tiled` and `triton` are called between two graphs, as they are.
"""

from __future__ import annotations

import importlib.util
import logging
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from lexforge.kernels.splade_head.reference import splade_head_reference
from lexforge.kernels.splade_head.tiled import splade_head_tiled

logger = logging.getLogger(__name__)
Implementation = Literal["auto", "reference", "tiled", "triton"]


def splade_head(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    attention_mask: Tensor,
    impl: Implementation = "auto",
    double_log1p: bool = False,
) -> Tensor:
    """Pool token states into non-negative vocabulary activations; 0 for a row with no token.

    Products run in the inputs' dtype (under autocast in the autocast dtype), everything after them in float32
    (float64 for float64 inputs). Gradients are summed in that precision too, and have the inputs' dtype; only
    "reference" rounds them to the autocast dtype on the way, as PyTorch's own linear layer does. The gradient
    of a maximum goes to the first token that attains it. A bias of -inf switches a term off: activation 0,
    gradient 0. What padding holds, NaN included, has no effect.

    Args:
        hidden: `[B, L, D]` float, the states that the output embedding would turn into logits.
        weight: `[V, D]`, dtype of `hidden`, the output embedding.
        bias: `[V]` float, the output bias, or None.
        attention_mask: `[B, L]` bool, integer or float; 0 marks a token to leave out. Holes and empty rows
            are allowed.
        impl: "auto" takes "triton" for CUDA tensors of at most 32 bits where Triton can be imported, and
            "tiled" otherwise, with one warning where Triton is missing; a named implementation is never
            replaced by another.
        double_log1p: Apply log1p twice.

    Returns:
        `[B, V]` float32 (float64 for float64 inputs), >= 0.

    Raises:
        ValueError: For shapes, dtypes or devices that do not fit, or an unknown `impl`.
        ImportError: For `impl="triton"` without Triton.
    """
    _check(hidden, weight, bias, attention_mask)
    device = hidden.device.type
    if impl == "auto":
        narrow = hidden.dtype != torch.float64
        impl = "triton" if hidden.is_cuda and narrow and triton_is_installed() else "tiled"
    # Autocast sets the dtype of the products alone. The fast implementations cast for themselves, so that
    # neither the gradients are rounded nor a cast copy of the weight is kept for the backward pass.
    dtype = hidden.dtype
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    if impl == "reference":
        return splade_head_reference(hidden.to(dtype), weight.to(dtype), bias, attention_mask, double_log1p)
    # A compiler can look into neither: the shapes within "tiled" depend on the data, and "triton" launches
    # kernels of its own.
    compiling = torch.compiler.is_compiling()
    if impl == "tiled":
        tiled = torch.compiler.disable(splade_head_tiled) if compiling else splade_head_tiled
        return tiled(hidden, weight, bias, attention_mask, double_log1p, dtype)
    if impl == "triton":
        from lexforge.kernels.splade_head.triton.head import splade_head_triton

        triton = torch.compiler.disable(splade_head_triton) if compiling else splade_head_triton
        return triton(hidden, weight, bias, attention_mask, double_log1p=double_log1p)
    raise ValueError(f"impl must be 'auto', 'reference', 'tiled' or 'triton', got {impl!r}")


@cache
def triton_is_installed() -> bool:
    """Return whether Triton can be imported; a GPU without it is told once what it loses."""
    found = importlib.util.find_spec("triton") is not None
    if not found:
        logger.warning(
            "the SPLADE head takes its slow way on this GPU: Triton is missing (pip install triton)"
        )
    return found


def _check(hidden: Tensor, weight: Tensor, bias: Tensor | None, attention_mask: Tensor) -> None:
    """Raise for what the implementations would answer with a far-off error or, worse, a broadcast."""
    if hidden.dim() != 3 or not hidden.is_floating_point():
        raise ValueError(f"hidden must be float [B, L, D], got {hidden.dtype} {tuple(hidden.shape)}")
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[2]:
        raise ValueError(
            f"weight must be [V, D] with D = {hidden.shape[2]} as in hidden, got {tuple(weight.shape)}"
        )
    if weight.dtype != hidden.dtype and not torch.is_autocast_enabled(hidden.device.type):
        raise ValueError(f"hidden and weight must share a dtype, got {hidden.dtype} and {weight.dtype}")
    if bias is not None and (bias.shape != weight.shape[:1] or not bias.is_floating_point()):
        raise ValueError(
            f"bias must be float [V] with V = {weight.shape[0]}, got {bias.dtype} {tuple(bias.shape)}"
        )
    if attention_mask.shape != hidden.shape[:2]:
        raise ValueError(
            f"attention_mask must be [B, L] = {tuple(hidden.shape[:2])}, got {tuple(attention_mask.shape)}"
        )
    devices = {t.device for t in (hidden, weight, bias, attention_mask) if t is not None}
    if len(devices) > 1:
        raise ValueError(f"all tensors must be on one device, got {sorted(map(str, devices))}")
