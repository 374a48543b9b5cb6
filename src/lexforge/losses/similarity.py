"""Scores of queries against candidates, by dot product or cosine.

A cosine is the product divided by both lengths, so that no normalised copy of the vectors is made: autograd
would keep it, and rows of vocabulary width are what fills the memory of a sparse retriever's training.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lexforge.common.similarity import Similarity, check_similarity
from lexforge.losses.precision import at_least_float32


def scores_of_columns(queries: Tensor, columns: Sequence[Tensor], similarity: Similarity) -> Tensor:
    """Score every query against the rows of several columns, which are not joined in memory.

    Args:
        queries: `[B, D]` float.
        columns: One or more tensors `[N_i, D]` float; each may have another number of rows N_i.
        similarity: "cosine" divides by both norms (a zero vector scores 0); "dot" does not.

    Returns:
        `[B, N]` float, N the number of all rows; the columns stand one after the other.

    Raises:
        ValueError: If the similarity is unknown.
    """
    check_similarity(similarity)
    scores = torch.cat([queries @ rows.T for rows in columns], dim=1)
    if similarity == "dot":
        return scores
    lengths = torch.cat([row_lengths(rows) for rows in columns])  # [N]
    return scores / row_lengths(queries).unsqueeze(1) / lengths


def paired_scores(queries: Tensor, columns: Sequence[Tensor], similarity: Similarity) -> Tensor:
    """Score every query against its own row of each column.

    Args:
        queries: `[B, D]` float.
        columns: K tensors `[B, D]` float; row i belongs to query i.
        similarity: As in `scores_of_columns`.

    Returns:
        `[B, K]` float.
    """
    scores = torch.stack([torch.linalg.vecdot(queries, rows) for rows in columns], dim=1)
    if similarity == "dot":
        return scores
    lengths = torch.stack([row_lengths(rows) for rows in columns], dim=1)  # [B, K]
    return scores / row_lengths(queries).unsqueeze(1) / lengths


def row_lengths(rows: Tensor) -> Tensor:
    """Return the length of each row of `[N, D]` to divide by; a row shorter than 1e-12 counts as endless.

    So a zero row has cosine 0 and gradient 0. Divided by 1e-12 its gradient would be of order 1e12, which
    takes a whole step under clipping and does not fit into float16.
    """
    lengths = torch.linalg.vector_norm(rows, dim=-1)
    return lengths.masked_fill(lengths < 1e-12, torch.inf)


def unit_rows(rows: Tensor) -> Tensor:
    """Return rows `[N, D]` scaled to length 1, in float32 at least; a zero row stays, with gradient 0."""
    rows = at_least_float32(rows)
    return rows / row_lengths(rows).unsqueeze(-1)
