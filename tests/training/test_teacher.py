"""Which teacher a run has, by its options and its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset

from lexforge.training import (
    BM25Teacher,
    choose_teacher,
    embed_by_teacher,
    load_teacher,
    without_single_scores,
)

ROWS = [
    {"anchor": "sort", "positive": "sort a list", "label": 1.0},
    {"anchor": "search", "positive": "search an index", "label": 0.5},
]


def test_the_preset_decides_where_no_teacher_is_named() -> None:
    """A teacher that is named always wins."""
    assert choose_teacher(None, "bm25", None) == "bm25"
    assert choose_teacher("lsa", "bm25", Path("cache")) == "lsa"
    assert choose_teacher("bm25", "lsa", None) == "bm25"


def test_a_teacher_that_is_nowhere_and_a_cache_that_nothing_fills_are_refused() -> None:
    """Both would be noticed only after the run."""
    with pytest.raises(FileNotFoundError, match="no/such/teacher"):
        choose_teacher("no/such/teacher", "bm25", None)
    with pytest.raises(ValueError, match="--teacher-cache cache would be ignored"):
        choose_teacher(None, "bm25", Path("cache"))


def test_bm25_needs_no_cache_and_others_have_one(tmp_path: Path) -> None:
    """BM25 scores what comes; the vectors of a fitted teacher are written once."""
    documents = [row["positive"] for row in ROWS] * 3
    bm25 = load_teacher("bm25", documents)
    assert isinstance(bm25, BM25Teacher)
    assert embed_by_teacher(bm25, ROWS, tmp_path / "bm25") is bm25
    lsa = load_teacher("lsa", [f"{text} {n}" for n, text in enumerate(documents)])
    kept = embed_by_teacher(lsa, ROWS, tmp_path)
    assert np.isfinite(kept.lookup(["sort"], "query")).all()


@pytest.mark.parametrize("make", [list, Dataset.from_list], ids=["list", "dataset"])
def test_a_single_score_per_row_is_left_to_bm25(make: Any) -> None:
    """Pairs with a grade are common on the hub; one score per row has nothing to be compared with."""
    said: list[str] = []
    left = without_single_scores(make(ROWS), "bm25", say=said.append)
    assert [set(row) for row in left] == [{"anchor", "positive"}] * 2
    assert len(said) == 1
    assert "bm25 scores the batch" in said[0]
    listed = [row | {"negative_1": "no", "label": [0.9, 0.1]} for row in ROWS]
    for rows, name in ((make(ROWS), "lsa"), (make(listed), "bm25")):
        assert without_single_scores(rows, name, say=said.append) is rows
    assert len(said) == 1
