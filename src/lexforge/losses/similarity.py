"""Scores of queries against candidates, by dot product or cosine."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lexforge.common.similarity import Similarity, check_similarity


def similarity_scores(queries: Tensor, candidates: Tensor, similarity: Similarity) -> Tensor:
    """Score every query against every candidate.

    Args:
        queries: `[B, D]` float.
        candidates: `[N, D]` float.
        similarity: "cosine" divides by both norms (a zero vector scores 0); "dot" does not.

    Returns:
        `[B, N]` float.

    Raises:
        ValueError: If the similarity is unknown.
    """
    check_similarity(similarity)
    if similarity == "cosine":
        queries, candidates = F.normalize(queries, dim=-1), F.normalize(candidates, dim=-1)
    return queries @ candidates.T


def paired_scores(queries: Tensor, candidates: Tensor, similarity: Similarity) -> Tensor:
    """Score every query against its own list of candidates.

    Args:
        queries: `[B, D]` float.
        candidates: `[B, K, D]` float; row i holds the candidates of query i.
        similarity: As in `similarity_scores`.

    Returns:
        `[B, K]` float.

    Raises:
        ValueError: If the similarity is unknown.
    """
    check_similarity(similarity)
    if similarity == "cosine":
        queries, candidates = F.normalize(queries, dim=-1), F.normalize(candidates, dim=-1)
    return torch.einsum("bd,bkd->bk", queries, candidates)
