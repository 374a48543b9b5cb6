"""Which teacher a run has, by its options and its rows, and what is refused before the data are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from lexforge.teachers import check_taught_rows, check_teacher, taught_by, without_single_scores

ROWS = [
    {"anchor": "sort", "positive": "sort a list", "label": 1.0},
    {"anchor": "search", "positive": "search an index", "label": 0.5},
]


def test_teachers_that_need_no_file_and_one_that_has_its_files_pass(tiny_checkpoint: Path) -> None:
    """The fitted teachers are made from the corpus, which is not read yet."""
    for name in (None, "bm25", "lsa", "lsa-char", str(tiny_checkpoint)):
        check_teacher(name, "bm25", needed=True)


def test_a_teacher_that_is_nowhere_is_refused() -> None:
    """It was found missing after minutes of BM25."""
    with pytest.raises(FileNotFoundError, match="no/such/teacher"):
        check_teacher("no/such/teacher", "bm25", needed=True)


@pytest.mark.parametrize(
    ("teacher", "scores", "cache", "needed", "message"),
    [
        ("lsa", None, None, False, "--teacher lsa would be ignored"),
        (None, None, Path("c"), False, "--teacher-cache c would be ignored"),
        ("lsa", None, Path("c"), False, "--teacher lsa and --teacher-cache c would be ignored"),
        (None, Path("s"), Path("c"), True, "--teacher-cache c would be ignored"),
        ("lsa", Path("s"), None, True, "pass --teacher or --teacher-scores"),
        ("bm25", None, Path("c"), True, "--teacher-cache c would be ignored; leave it out, or name"),
        ("none", None, None, True, "A run without one takes --loss.distillation-weight 0"),
    ],
)
def test_an_option_that_the_run_would_ignore_is_an_error(
    teacher: str | None, scores: Path | None, cache: Path | None, needed: bool, message: str
) -> None:
    """A run of hours that reads none of them looks like one that does."""
    with pytest.raises(ValueError, match=message):
        check_teacher(teacher, "lsa", scores, cache, needed=needed)


def test_a_teacher_and_its_cache_pass() -> None:
    """The usual call, and the one without a teacher."""
    check_teacher("lsa", "bm25", None, Path("c"), needed=True)
    check_teacher(None, "lsa", None, Path("c"), needed=True)
    check_teacher(None, "bm25", needed=False)
    with pytest.raises(ValueError, match="the teacher bm25 scores texts as they come"):
        check_teacher(None, "bm25", None, Path("c"), needed=True)


def test_a_cache_beside_rows_with_scores_is_refused() -> None:
    """The scores of the rows take the place of a teacher, so nothing would be cached."""
    rows = [{"anchor": "a", "positive": "b", "negative_1": "c", "label": [1.0, 0.5]}]
    check_taught_rows(None, rows, needed=True)
    with pytest.raises(ValueError, match="so --teacher-cache c would be ignored"):
        check_taught_rows(None, rows, needed=True, cache=Path("c"))


def test_the_card_names_the_teacher_that_was_used() -> None:
    """A file of scores replaces a teacher, and so do scores in the rows; without either it is `lsa`."""
    plain, labelled = [{"anchor": "a", "positive": "b"}], [{"anchor": "a", "positive": "b", "label": [1.0]}]
    assert taught_by("some/model", None, plain) == "some/model"
    assert taught_by("lsa", None, labelled) == "scores in the training rows"
    assert taught_by("lsa", Path("folder/scores.tsv"), labelled) == "scores.tsv"


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
