"""How much each reference pulls or pushes a query, from their labels alone (docs/losses.md, section
14).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Aggregate = Literal["mean", "max"]


def reference_weights(
    query_labels: Tensor,
    section_labels: Sequence[Tensor],
    with_prototypes: bool,
    label_similarity: Tensor,
    *,
    alpha: float,
    beta: float,
    aggregate: Aggregate,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """The weights of all references in `lexforge.losses.nws.nws`, which states the formulas.

    The weights are sums over labels that factor into products of two matrices, so that no tensor `[B, R, L]`
    is made. With
    R_ik = alpha / |y_i or y_k| where text i and reference k share a label and 0 elsewhere, M_ikc is R_ik y_ic
    y_kc, and so

        D = y * (R @ y_k + 1 - alpha / |y|)    and    w = R * ((y / (D + eps)) @ y_k.T).

    Args:
        query_labels: `[B, L]` float of 0 and 1.
        section_labels: `[R, L]` of 0 and 1 for each section: the labels of the keys, then of the queue.
        with_prototypes: Whether the prototypes follow as the last L references.
        label_similarity: `[L, L]` float in [0, 1].
        alpha: Weight of keys and queue among the positives, > 0.
        beta: Weight of keys and queue among the negatives, > 0.
        aggregate: "mean" or "max", over the label pairs of a query and a reference.
        eps: Added to the normaliser, >= 0.

    Returns:
        The weight of each reference as a positive, 0 for a negative, and the logarithm of its weight as a
        negative, -inf for a positive: `[B, R]` float each, sections in order, then prototypes.
    """
    count = query_labels.sum(dim=1, keepdim=True)
    shares, log_negatives = [], []
    normaliser = query_labels * (1 - alpha / count.clamp_min(1))
    for section in section_labels:
        labels = section.to(query_labels.dtype)
        shared = query_labels @ labels.T
        their_count = labels.sum(dim=1)
        is_positive = shared > 0
        share = (alpha / (count + their_count - shared)).masked_fill_(~is_positive, 0.0)
        normaliser += query_labels * (share @ labels)
        shares.append((share, labels))
        if aggregate == "mean":
            pairs = (count * their_count + eps).clamp_min(1e-30)  # Without a label the similarity is 0.
            similarity = (query_labels @ label_similarity) @ labels.T / pairs
        else:
            best = largest_over_labels(label_similarity, query_labels)  # [B, L], best own label for each
            similarity = largest_over_labels(best.T.contiguous(), section).T
        weight = similarity.neg_().add_(1).clamp_min_(0).mul_(beta)
        log_negatives.append(weight.log_().masked_fill_(is_positive, -math.inf))
    normaliser += eps
    per_label = torch.where((query_labels > 0) & (normaliser != 0), query_labels / normaliser, 0.0)
    positives = [share * (per_label @ labels.T) for share, labels in shares]
    if with_prototypes:
        positives.append(per_label)
        log_negatives.append((1 - query_labels).log())
    return torch.cat(positives, dim=1), torch.cat(log_negatives, dim=1)


def largest_over_labels(values: Tensor, labels: Tensor) -> Tensor:
    """Take the elementwise maximum of the values of each row's labels; 0 for a row without a label.

    Args:
        values: `[L, W]` float, >= 0.
        labels: `[N, L]` of 0 and 1.

    Returns:
        `[N, W]`; no larger tensor is made.
    """
    largest = values.new_zeros(len(labels), values.shape[1])
    for value, carried in zip(values, labels.T.contiguous(), strict=True):
        rows = carried.nonzero().squeeze(1)
        largest[rows] = torch.maximum(largest[rows], value)
    return largest
