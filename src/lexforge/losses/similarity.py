"""The two similarities of the field, dot product and cosine, behind one name."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

Similarity = Literal["cosine", "dot"]


def check_similarity(similarity: str) -> None:
    """Refuse a similarity that is neither "cosine" nor "dot".

    Raises:
        ValueError: With the value received.
    """
    if similarity not in ("cosine", "dot"):
        raise ValueError(f'similarity must be "cosine" or "dot"; received {similarity!r}')


def similarity_of(model: nn.Module) -> Similarity:
    """The similarity by which a model is searched, which training should use too.

    Args:
        model: An encoder with `similarity_fn_name`; "dot" where it has none.

    Returns:
        "cosine" or "dot".

    Raises:
        ValueError: If the model's similarity is another.
    """
    name = str(getattr(model, "similarity_fn_name", None) or "dot")
    check_similarity(name)
    return "cosine" if name == "cosine" else "dot"


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
