"""Vectors that were encoded once, as other settings of the model would have made them.

Three settings make vectors sparser without training: a level that is subtracted from all logits, which is
what trimming writes into the model; a largest number of terms per text (`max_active_dims`); and a threshold
that an activation must exceed. What each of them leaves follows from the activations of the model alone, so a
whole curve costs one encoding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sentence_transformers import SparseEncoder

from lexforge.common.types import TextKind
from lexforge.corpus import encode
from lexforge.models.decoder_bias import raised_bias
from lexforge.retrieval.vectors import SparseMatrix
from lexforge.sparsity.trimming import activations_of, logits_of, looks_up_queries


class StoredVectors:
    """The vectors of texts, encoded once, for every level from the loosest one up.

    Args:
        model: A SPLADE encoder that `check_trimming` accepts. It is the same afterwards.
        texts: At least one text.
        kind: Whether the texts are queries or documents.
        loosest: The lowest level that will be asked for. Where it is above 0, the vectors of the model as it
            is are stored too.
        batch_size: Number of texts per forward pass.

    Raises:
        ValueError: If there is no text, or a vector is not finite.
    """

    def __init__(
        self,
        model: SparseEncoder,
        texts: list[str],
        kind: TextKind,
        loosest: float,
        *,
        batch_size: int = 32,
    ) -> None:
        self.model = model
        self.is_looked_up = kind == "query" and looks_up_queries(model)  # by no head that has a level
        self.height = max(0.0, -loosest)
        with raised_bias(model, self.height):
            self.vectors: SparseMatrix = encode(
                model, texts, kind, batch_size=batch_size, show_progress_bar=True
            )

    def at_level(self, level: float = 0.0, scale: float = 1.0) -> SparseMatrix:
        """Return the vectors of the model whose logits are lower by a level; 0 is the model as it is.

        Args:
            level: What is subtracted from all logits, at least the loosest level. The vectors of queries that
                are looked up stay as they are.
            scale: What the logits are multiplied by afterwards.

        Returns:
            CSR `[N, V] float32`.
        """
        if self.is_looked_up:
            return self.vectors
        logits = logits_of(self.model, self.vectors.data, self.height) - level
        left = logits > 0
        return _kept(self.vectors, left, activations_of(self.model, scale * logits[left]))

    def above(self, threshold: float) -> SparseMatrix:
        """Return the vectors of the model as it is, without the activations up to a threshold.

        Args:
            threshold: What an activation must exceed, >= 0. The weights of queries that are looked up are no
                activations, and stay.

        Returns:
            CSR `[N, V] float32`.
        """
        vectors = self.at_level()
        return vectors if self.is_looked_up else _kept(vectors, vectors.data > threshold)


def largest_terms(vectors: SparseMatrix, most: int) -> SparseMatrix:
    """Keep the largest terms of each vector, as `max_active_dims` does.

    Args:
        vectors: CSR `[N, V]` with weights > 0.
        most: Largest number of terms per row.

    Returns:
        CSR `[N, V]`; of equal weights the terms of lower ids stay.
    """
    rows = np.repeat(np.arange(vectors.shape[0]), np.diff(vectors.indptr))
    order = np.lexsort((vectors.indices, -vectors.data, rows))  # row by row, the largest first
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - vectors.indptr[rows]  # rows stand in the same order
    return _kept(vectors, rank < most)


def _kept(
    vectors: SparseMatrix, left: NDArray[np.bool_], data: NDArray[np.float32] | None = None
) -> SparseMatrix:
    """Return the marked entries of a matrix, with other weights if they are given."""
    ends = np.concatenate([[0], np.cumsum(left)])[vectors.indptr]  # [N + 1]
    weights: Any = vectors.data[left] if data is None else data
    return sparse.csr_array((weights, vectors.indices[left], ends), shape=vectors.shape)
