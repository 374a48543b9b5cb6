"""How long a user waits: the time of single searches."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from lexforge.retrieval.base import Index

PERCENTILES = (50, 95, 99)


def search_latency(index: Index, queries: Any, k: int, searches: int) -> dict[str, float]:
    """The time of one query's search, encoding not counted.

    Args:
        index: The index, warm: a compiled search has run before.
        queries: As for `Index.search`, one row a query, at least one.
        k: Hits wanted.
        searches: Queries searched one by one, evenly spaced over the rows; all where there are fewer.

    Returns:
        `search_p50_ms`, `search_p95_ms`, `search_p99_ms`: percentiles in milliseconds, linear between the two
        nearest times.

    Raises:
        ValueError: No query, or fewer than one search.
    """
    total = queries.shape[0]
    if total < 1 or searches < 1:
        raise ValueError(f"{total} queries and {searches} searches: nothing to time")
    times = []
    for row in np.linspace(0, total - 1, min(searches, total)).astype(int):
        query = queries[row : row + 1]
        started = time.perf_counter()
        index.search(query, k)
        times.append(1000 * (time.perf_counter() - started))
    values = np.percentile(times, PERCENTILES)
    return {f"search_p{percent}_ms": float(value) for percent, value in zip(PERCENTILES, values, strict=True)}
