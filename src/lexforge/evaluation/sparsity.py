"""How sparse the vectors are, and what a search over them costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Matrix = sparse.csr_matrix | sparse.csr_array


@dataclass(frozen=True)
class Sparsity:
    """Sparsity of queries and documents.

    Args:
        query_active_dims: Mean number of non-zero weights a query.
        document_active_dims: The same a document.
        flops: Expected multiplications for one query and one document, `sum_j p_q(j) p_d(j)`, where p(j) is
            the share of vectors in which dimension j is active (Formal et al., "SPLADE", 2021, section 4;
            Paria et al., "Minimizing FLOPs to learn efficient sparse representations", 2020).
    """

    query_active_dims: float
    document_active_dims: float
    flops: float


def measure_sparsity(queries: Matrix, documents: Matrix) -> Sparsity:
    """Count active dimensions.

    Args:
        queries: CSR `[Q, V]`, Q >= 1.
        documents: CSR `[N, V]`, N >= 1.

    Returns:
        The counts.

    Raises:
        ValueError: Different widths, or no row.
    """
    if queries.shape[1] != documents.shape[1]:
        raise ValueError(f"queries have {queries.shape[1]} columns, documents {documents.shape[1]}")
    if not queries.shape[0] or not documents.shape[0]:
        raise ValueError(f"{queries.shape[0]} queries and {documents.shape[0]} documents: nothing to measure")
    query_shares, document_shares = _active_shares(queries), _active_shares(documents)
    return Sparsity(
        float(query_shares.sum()), float(document_shares.sum()), float(query_shares @ document_shares)
    )


def _active_shares(vectors: Matrix) -> NDArray[np.float64]:
    active = np.bincount(vectors.indices[vectors.data != 0], minlength=vectors.shape[1])
    return active / vectors.shape[0]
