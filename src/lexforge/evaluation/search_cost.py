"""Active dimensions of queries and documents, and the cost of a search that follows from them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lexforge.retrieval.vectors import SparseMatrix


def measure_sparsity(queries: SparseMatrix, documents: SparseMatrix) -> dict[str, float]:
    """Count the active dimensions of queries and documents.

    Args:
        queries: CSR `[Q, V]`, Q >= 1.
        documents: CSR `[N, V]`, N >= 1.

    Returns:
        `query_active_dims` and `document_active_dims`, the mean numbers of weights that are not 0 per vector;
        and `flops`, the expected number of multiplications for one query and one document,
        `sum_j p_q(j) p_d(j)`, where p(j) is the share of vectors in which dimension j is active.

    Raises:
        ValueError: If the widths differ, or there is no query or no document.

    Source:
        Formal et al., "SPLADE", 2021, section 4; Paria et al., "Minimizing FLOPs to learn efficient sparse
        representations", 2020.
    """
    if queries.shape[1] != documents.shape[1]:
        raise ValueError(
            "queries and documents must have as many columns; received "
            f"{queries.shape[1]} and {documents.shape[1]}"
        )
    if not queries.shape[0] or not documents.shape[0]:
        raise ValueError(
            "at least one query and one document are needed; received "
            f"{queries.shape[0]} queries and {documents.shape[0]} documents"
        )
    query_shares, document_shares = _active_shares(queries), _active_shares(documents)
    return {
        "query_active_dims": float(query_shares.sum()),
        "document_active_dims": float(document_shares.sum()),
        "flops": float(query_shares @ document_shares),
    }


def _active_shares(vectors: SparseMatrix) -> NDArray[np.float64]:
    """Return the share of rows in which each column is not zero, `[V]`."""
    active = np.bincount(vectors.indices[vectors.data != 0], minlength=vectors.shape[1])
    return active / vectors.shape[0]
