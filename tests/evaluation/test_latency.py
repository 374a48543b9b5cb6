"""Percentiles of single searches, with a clock that is under control."""

from __future__ import annotations

import numpy as np
import pytest

from lexforge.evaluation import latency


class Clock:
    """An index whose n-th search takes n milliseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        self.searched: list[int] = []
        monkeypatch.setattr(latency.time, "perf_counter", lambda: self.seconds)

    def search(self, queries: np.ndarray, k: int) -> None:
        assert queries.shape == (1, 1)
        assert k == 7
        self.searched.append(int(queries[0, 0]))
        self.seconds += len(self.searched) / 1000


def test_percentiles_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of 1 .. 101 ms: the median is 51, and 95 % lie at or below 96."""
    clock = Clock(monkeypatch)
    found = latency.search_latency(clock, np.arange(101)[:, None], 7, searches=1000)
    assert found == pytest.approx({"search_p50_ms": 51, "search_p95_ms": 96, "search_p99_ms": 100})
    assert clock.searched == list(range(101))


def test_searches_are_spread_over_the_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones may all be short."""
    clock = Clock(monkeypatch)
    latency.search_latency(clock, np.arange(41)[:, None], 7, searches=5)
    assert clock.searched == [0, 10, 20, 30, 40]
