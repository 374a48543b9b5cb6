"""What a search costs: active dimensions and operations, and the time of single searches."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexforge.common.samples import evenly_spaced
from lexforge.retrieval.base import Index
from lexforge.retrieval.vectors import SparseMatrix

PERCENTILES = (50, 95, 99)


def measure_sparsity(queries: SparseMatrix, documents: SparseMatrix) -> dict[str, float]:
    """Count the active dimensions of queries and documents.

    Args:
        queries: CSR `[Q, V]`, Q >= 1.
        documents: CSR `[N, V]`, N >= 1.

    Returns:
        `query_active_dims` and `document_active_dims`, the mean numbers of weights that are not 0 per vector;
        and `flops`, the expected number of multiplications for one query and one document,
        `sum_j p_q(j) p_d(j)`, where p(j) is the share of vectors in which dimension j is active.

    Source:
        Formal et al., "SPLADE", 2021, section 4; Paria et al., "Minimizing FLOPs to learn efficient sparse
        representations", 2020.
    """
    query_shares, document_shares = _active_shares(queries), _active_shares(documents)
    return {
        "query_active_dims": float(query_shares.sum()),
        "document_active_dims": float(document_shares.sum()),
        "flops": float(query_shares @ document_shares),
    }


def search_latency(index: Index, queries: Any, k: int, searches: int) -> dict[str, float]:
    """Measure the time of searching one query, without its encoding.

    Args:
        index: The index; it has searched before, so that nothing is compiled now.
        queries: Vectors as `Index.search` takes them, one row per query, at least one.
        k: Number of hits wanted per query.
        searches: Number of queries to search one by one, evenly spaced over the rows; all if there are fewer.

    Returns:
        The percentiles `search_p50_ms`, `search_p95_ms` and `search_p99_ms` in milliseconds, interpolated
        linearly between the two nearest times.
    """
    times = []
    for row in evenly_spaced(queries.shape[0], searches):
        query = queries[row : row + 1]
        started = time.perf_counter()
        index.search(query, k)
        times.append(1000 * (time.perf_counter() - started))
    values = np.percentile(times, PERCENTILES)
    return {f"search_p{percent}_ms": float(value) for percent, value in zip(PERCENTILES, values, strict=True)}


def _active_shares(vectors: SparseMatrix) -> NDArray[np.float64]:
    """Return the share of rows in which each column is not zero, `[V]`."""
    active = np.bincount(vectors.indices[vectors.data != 0], minlength=vectors.shape[1])
    return active / vectors.shape[0]
