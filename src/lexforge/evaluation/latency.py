"""The time of single searches, which is how long a user waits."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from lexforge.common.samples import evenly_spaced
from lexforge.retrieval.base import Index

PERCENTILES = (50, 95, 99)


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
