"""Triplet margin on cosine similarity (docs/losses.md, section 4)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lexforge.losses.precision import in_float32
from lexforge.losses.similarity import paired_scores


@in_float32
def triplet_margin(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 0.3,
    *,
    left_out: Tensor | None = None,
) -> Tensor:
    """Hinge on the cosine to the positive exceeding the cosine to the negative by a margin.

    L = mean over rows of `max(0, margin - cos(a, p) + cos(a, n))`.

    Args:
        anchor: `[B, D]` float.
        positive: `[B, D]` float.
        negative: `[B, D]` float.
        margin: In units of the cosine, >= 0.
        left_out: `[B]` bool, rows whose negative is none; they add 0. None takes all rows.

    Returns:
        0-dim float; 0 for an empty batch, connected to the graph. A zero vector has cosine 0 to everything.

    Raises:
        ValueError: If the margin is negative or the shapes differ.

    Source: docs/losses.md, section 4.
    """
    if not margin >= 0:
        raise ValueError(f"margin must be >= 0; received {margin}")
    if anchor.dim() != 2 or not anchor.shape == positive.shape == negative.shape:
        raise ValueError(
            "anchor, positive and negative must be of one shape [B, D]; received "
            f"{tuple(anchor.shape)}, {tuple(positive.shape)} and {tuple(negative.shape)}"
        )
    if not anchor.numel():
        return anchor.sum() + positive.sum() + negative.sum()
    to_positive, to_negative = paired_scores(anchor, [positive, negative], "cosine").unbind(dim=1)
    hinge = F.relu(margin - to_positive + to_negative)  # [B]
    return (hinge if left_out is None else hinge.masked_fill(left_out, 0)).mean()
