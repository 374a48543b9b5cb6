"""Fused rankings, against the paper's formula and what cannot be fused."""

from __future__ import annotations

import numpy as np
import pytest

from lexforge.retrieval import Hits, reciprocal_rank_fusion


def hits(*rankings: str) -> Hits:
    return Hits([list(each) for each in rankings], [np.ones(len(each), np.float32) for each in rankings])


def test_ranks_decide_and_scores_do_not() -> None:
    """Each ranking gives 1 / (60 + rank); equal sums stand in the order of the first ranking."""
    fused = reciprocal_rank_fusion([hits("abc", ""), hits("bd", "x")], 3)
    assert fused.ids == [["b", "a", "d"], ["x"]]
    np.testing.assert_allclose(fused.scores[0], [1 / 62 + 1 / 61, 1 / 61, 1 / 62], rtol=1e-6)
    assert reciprocal_rank_fusion([hits("ab"), hits("ba")], 2).ids == [["a", "b"]]


def test_documents_of_the_same_ranks_are_equal() -> None:
    """Added in turn, the terms of the ranks 1, 7, 2 and 2, 1, 7 gave sums that differ in the last bit."""
    fused = reciprocal_rank_fusion([hits("abcdefg"), hits("bhijkla"), hits("manopqb")], 2)
    assert fused.ids == [["a", "b"]]  # as in the first ranking


def test_bad_rankings_are_refused() -> None:
    """Rankings of other queries, and no hits wanted."""
    with pytest.raises(ValueError, match="longer"):
        reciprocal_rank_fusion([hits("a"), hits("a", "b")], 1)
    with pytest.raises(ValueError, match="k must be at least 1; received 0"):
        reciprocal_rank_fusion([hits("a")], 0)
