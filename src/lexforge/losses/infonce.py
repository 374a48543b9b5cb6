"""InfoNCE with in-batch and hard negatives (seed 003, section 1; seed 004)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lexforge.losses.similarity import Similarity, similarity_scores


def check_temperature(temperature: float) -> None:
    """Refuse a temperature that is not a positive number.

    Raises:
        ValueError: With the value received.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be > 0; received {temperature}")


def info_nce(
    anchor: Tensor,
    positive: Tensor,
    negatives: Tensor | None = None,
    temperature: float = 0.07,
    similarity: Similarity = "cosine",
) -> Tensor:
    """Cross-entropy of picking an anchor's own positive among all candidates of the batch.

    L = mean over rows i of `-log( exp(s_ii / T) / sum over candidates c of exp(s_ic / T) )`. The candidates
    of every row are all B positives and all B * K negatives.

    Args:
        anchor: `[B, D]` float.
        positive: `[B, D]` float; row i belongs to anchor i.
        negatives: `[B, K, D]` float, K hard negatives an anchor, or None.
        temperature: T, > 0.
        similarity: "cosine" or "dot".

    Returns:
        0-dim float; 0 for an empty batch, connected to the graph.

    Raises:
        ValueError: If shapes disagree, the temperature is not positive or the similarity is unknown.

    Source: seed 003, section 1; van den Oord et al. 2018 (arXiv 1807.03748), equation 4.
    """
    check_temperature(temperature)
    if anchor.dim() != 2 or anchor.shape != positive.shape:
        raise ValueError(
            f"anchor and positive must both be [B, D]; received {tuple(anchor.shape)} and "
            f"{tuple(positive.shape)}"
        )
    candidates = positive
    if negatives is not None:
        if negatives.dim() != 3 or (negatives.shape[0], negatives.shape[2]) != tuple(anchor.shape):
            raise ValueError(
                f"negatives must be [{anchor.shape[0]}, K, {anchor.shape[1]}]; received "
                f"{tuple(negatives.shape)}"
            )
        candidates = torch.cat([positive, negatives.flatten(0, 1)])
    scores = similarity_scores(anchor, candidates, similarity)
    return ranking_cross_entropy(scores, torch.arange(len(anchor), device=anchor.device), temperature)


def ranking_cross_entropy(scores: Tensor, target: Tensor, temperature: float) -> Tensor:
    """Softmax cross-entropy of each row's target candidate.

    Args:
        scores: `[B, N]` float, similarity of each row to each candidate.
        target: `[B]` int64, the column of each row's positive.
        temperature: > 0, divides the scores.

    Returns:
        0-dim float, the mean over rows; 0 for an empty batch, connected to the graph.
    """
    if not len(scores):
        return scores.sum()
    return F.cross_entropy(scores / temperature, target)
