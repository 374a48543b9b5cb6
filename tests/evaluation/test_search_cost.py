"""Active dimensions, expected operations and the time of a search: by hand, and by counting every pair."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from lexforge.evaluation import measure_sparsity, search_cost


def csr(dense) -> sparse.csr_array:
    return sparse.csr_array(np.asarray(dense, np.float32))


class Clock:
    """An index whose n-th search takes n milliseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        self.searched: list[int] = []
        monkeypatch.setattr(search_cost.time, "perf_counter", lambda: self.seconds)

    def search(self, queries: np.ndarray, k: int) -> None:
        assert queries.shape == (1, 1)
        assert k == 7
        self.searched.append(int(queries[0, 0]))
        self.seconds += len(self.searched) / 1000


def test_flops_is_the_mean_number_of_common_terms() -> None:
    """The product of shares is the mean over all pairs of the terms they have in common."""
    rng = np.random.default_rng(0)
    queries, documents = rng.random((7, 20)) < 0.3, rng.random((11, 20)) < 0.4
    result = measure_sparsity(csr(queries * 2.5), csr(documents * 0.1))
    common = [sum(q & d) for q in queries for d in documents]
    assert result["flops"] == pytest.approx(np.mean(common))
    assert result["query_active_dims"] == pytest.approx(np.mean([sum(q) for q in queries]))
    assert result["document_active_dims"] == pytest.approx(np.mean([sum(d) for d in documents]))


def test_stored_zeros_are_not_active() -> None:
    """A model that writes zeros into its sparse tensor is not denser for it."""
    matrix = sparse.csr_array((np.array([0.0, 2.0]), np.array([0, 1]), np.array([0, 2])), shape=(1, 3))
    assert measure_sparsity(matrix, matrix)["query_active_dims"] == 1


def test_percentiles_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of 1 .. 101 ms: the median is 51, and 95 % lie at or below 96."""
    clock = Clock(monkeypatch)
    found = search_cost.search_latency(clock, np.arange(101)[:, None], 7, searches=1000)
    assert found == pytest.approx({"search_p50_ms": 51, "search_p95_ms": 96, "search_p99_ms": 100})
    assert clock.searched == list(range(101))


def test_searches_are_spread_over_the_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones may all be short."""
    clock = Clock(monkeypatch)
    search_cost.search_latency(clock, np.arange(41)[:, None], 7, searches=5)
    assert clock.searched == [0, 10, 20, 30, 40]
