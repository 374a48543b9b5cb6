"""Attention and dropout of a transformer that is trained on a CPU, in passes that are compiled once.

In PyTorch these two take more of a step than all products of matrices on a processor with AMX: random numbers
come one by one, and the fused attention has no dropout and, in bfloat16, a slow backward pass. Here a counter
is hashed to one random number per element, so the backward pass makes the same numbers again and no mask is
stored, and scaling, mask, softmax and dropout are one pass over the scores. Two implementations agree:

- `reference` says the formulas with PyTorch's own operators;
- `compiled` runs loops of numba.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lexforge.kernels.encoder.compiled import CompiledAttention, CompiledDropout
from lexforge.kernels.encoder.reference import attention_reference, dropout_reference

Implementation = Literal["compiled", "reference"]


def draw_seed() -> tuple[int, int]:
    """Draw the seed of a call from PyTorch's random state, by which a call is repeated with the state."""
    low, high = torch.randint(2**32, (2,)).tolist()
    return low, high


def dropout(x: Tensor, p: float, seed: tuple[int, int], impl: Implementation = "compiled") -> Tensor:
    """Set each element to 0 with probability p, and divide the others by 1 - p.

    Args:
        x: Any shape, float32 or bfloat16, on a CPU.
        p: In [0, 1).
        seed: Two integers of 32 bits; equal seeds drop the same elements.
        impl: The implementation.

    Returns:
        The shape and dtype of `x`.

    Source: Srivastava et al. 2014, section 4. `lexforge.kernels.encoder.reference.kept` chooses the elements.
    """
    if impl == "reference":
        return dropout_reference(x, p, seed)
    result: Tensor = CompiledDropout.apply(x, p, seed)
    return result


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    p: float,
    seed: tuple[int, int],
    impl: Implementation = "compiled",
) -> Tensor:
    """Attend: dropout(softmax(scale * query @ key^T)) @ value, where masked keys count nothing.

    A query whose keys are all masked gets 0.

    Args:
        query: `[B, H, L, D]`, float32 or bfloat16, on a CPU.
        key: `[B, H, K, D]`, dtype of `query`.
        value: `[B, H, K, E]`, dtype of `query`.
        mask: `[B or 1, 1, L or 1, K]` bool, True where a query may attend to a key; None masks nothing.
        scale: Factor of the products.
        p: Share of the weights that are dropped, in [0, 1).
        seed: Two integers of 32 bits, as of `dropout`, over the weights `[B, H, L, K]`.
        impl: The implementation.

    Returns:
        `[B, H, L, E]`, dtype of `query`.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), equation 1.
    """
    if impl == "reference":
        return attention_reference(query, key, value, mask, scale, p, seed)
    result: Tensor = CompiledAttention.apply(query, key, value, mask, scale, p, seed)
    return result
