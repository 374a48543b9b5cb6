"""The result type and the checks every index shares."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from lexforge.retrieval.base import Hits, RankedPositions, check_ids, check_k, complete_ties


def test_a_run_has_no_ties_and_keeps_the_order() -> None:
    """trec_eval sorts ties by document id in float32: only strictly falling float32 scores keep our order."""
    scores = np.array([2, 2, 2, np.nextafter(np.float32(2), np.float32(0)), 1], np.float32)
    run = Hits([["z", "a", "m", "b", "c"]], [scores]).to_run(["q"])
    assert list(run["q"]) == ["z", "a", "m", "b", "c"]
    values = np.array(list(run["q"].values()), np.float32)
    assert (np.diff(values) < 0).all()
    assert values[0] == 2
    assert values[-1] == 1
    np.testing.assert_allclose(values, scores, rtol=5e-7)  # four units in the last place at most


def test_a_run_of_negative_and_of_no_scores() -> None:
    """Dense scores can be negative, and a query can find nothing."""
    run = Hits([["a", "b"], []], [np.array([-1, -1], np.float32), np.zeros(0, np.float32)]).to_run(["p", "q"])
    assert run["p"]["a"] == -1 > run["p"]["b"]
    assert run["q"] == {}


@pytest.mark.parametrize("query_ids", [["q"], ["q", "q"], ["q", "r", "s"]])
def test_a_run_needs_one_id_a_query(query_ids: list[str]) -> None:
    """A repeated id would silently drop a query from the mean."""
    with pytest.raises(ValueError, match="query ids"):
        Hits([["a"], ["b"]], [np.ones(1, np.float32)] * 2).to_run(query_ids)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a"], "1 ids for 2 documents"),
        (["a", "a"], "ids\\[1\\] is 'a', which an earlier document has already"),
        (["a", "known"], "ids\\[1\\] is 'known'"),
        (["a", 3], "ids\\[1\\] must be a string that is not empty; received 3"),
        (["", "a"], "ids\\[0\\] must be a string that is not empty; received ''"),
    ],
)
def test_ids_are_distinct_strings(ids: list, message: str) -> None:
    """An id that stands twice makes a run wrong without a sign."""
    with pytest.raises(ValueError, match=message):
        check_ids(ids, 2, {"known"})


def test_k_is_a_positive_integer() -> None:
    """k = 0 is a mistake of the caller, not an empty answer; a numpy integer is an integer."""
    assert check_k(np.int64(3)) == 3
    with pytest.raises(ValueError, match="k must be at least 1; received 0"):
        check_k(0)
    with pytest.raises(TypeError):
        check_k(1.5)


@pytest.mark.parametrize("exact", [True, False])
def test_a_tie_at_rank_k_is_completed(exact: bool) -> None:
    """A backend that returns the last of the equal documents first; only an exact one is asked again."""
    values = np.array([1.0] * 100 + [2.0] + [0.5] * 20, np.float32)
    depths = []

    def search(rows: np.ndarray, depth: int) -> Iterator[tuple[int, RankedPositions]]:
        depths.append(depth)
        order = np.lexsort((-np.arange(121), -values))[:depth]
        for row in rows.tolist():
            yield row, (order, values[order])

    positions, scores, counts = complete_ties(search, np.array([0, 2]), 3, 4, 121, exact)
    assert counts.tolist() == [4, 0, 4]
    assert scores[2].tolist() == [2, 1, 1, 1]
    assert positions[2].tolist() == ([100, 0, 1, 2] if exact else [100, 81, 82, 83])
    assert depths == ([20, 80, 121] if exact else [20])
