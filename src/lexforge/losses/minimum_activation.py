"""Minimum activation: the strongest terms of a row stay above a floor (docs/losses.md, section 6)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lexforge.losses.precision import in_float32


@in_float32
def minimum_activation(activations: Tensor, top_k: int = 5, threshold: float = 0.5) -> Tensor:
    """Hinge on the mean of the `top_k` strongest activations of each row reaching a threshold.

    L = mean over rows of `max(0, threshold - mean of the top_k activations)`.

    Args:
        activations: `[B, V]` float, >= 0.
        top_k: Number of strongest terms, in [1, V].
        threshold: Floor of their mean, in units of activation.

    Returns:
        0-dim float; 0 for an empty batch, connected to the graph.

    Raises:
        ValueError: If `top_k` is not in [1, V].

    Source: docs/losses.md, section 6.
    """
    if not 1 <= top_k <= activations.shape[1]:
        raise ValueError(f"top_k must be in [1, {activations.shape[1]}], the vocabulary; received {top_k}")
    if not len(activations):
        return activations.sum()
    return F.relu(threshold - activations.topk(top_k, dim=1).values.mean(dim=1)).mean()
