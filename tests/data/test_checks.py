"""What a command line names is checked before the data is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexforge.data import check_labelled_rows, check_language, check_teacher, check_teacher_options


def test_teachers_that_need_no_file_and_one_that_has_its_files_pass(tiny_checkpoint: Path) -> None:
    """The fitted teachers are made from the corpus, which is not read yet."""
    for name in (None, "lsa", "lsa-char", str(tiny_checkpoint)):
        check_teacher(name)


def test_a_teacher_that_is_nowhere_is_refused() -> None:
    """It was found missing after minutes of BM25."""
    with pytest.raises(FileNotFoundError, match="no/such/teacher"):
        check_teacher("no/such/teacher")


def test_a_language_without_stop_words_is_refused() -> None:
    """It was found unknown after the encoder had been built."""
    check_language("ko")
    with pytest.raises(ValueError, match="xx"):
        check_language("xx")


@pytest.mark.parametrize(
    ("teacher", "scores", "cache", "needed", "message"),
    [
        ("lsa", None, None, False, "--teacher lsa would be ignored"),
        (None, None, Path("c"), False, "--teacher-cache c would be ignored"),
        ("lsa", None, Path("c"), False, "--teacher lsa and --teacher-cache c would be ignored"),
        (None, Path("s"), Path("c"), True, "--teacher-cache c would be ignored"),
        ("lsa", Path("s"), None, True, "pass --teacher or --teacher-scores"),
    ],
)
def test_an_option_that_the_run_would_ignore_is_an_error(
    teacher: str | None, scores: Path | None, cache: Path | None, needed: bool, message: str
) -> None:
    """A run of hours that reads none of them looks like one that does."""
    with pytest.raises(ValueError, match=message):
        check_teacher_options(teacher, scores, cache, needed=needed)


def test_a_teacher_and_its_cache_pass() -> None:
    """The usual call, and the one without a teacher."""
    check_teacher_options("lsa", None, Path("c"), needed=True)
    check_teacher_options(None, None, Path("c"), needed=True)  # the default teacher
    check_teacher_options(None, None, None, needed=False)


def test_a_cache_beside_rows_with_scores_is_refused() -> None:
    """The scores of the rows take the place of a teacher, so nothing would be cached."""
    rows = [{"anchor": "a", "positive": "b", "negative_1": "c", "label": [1.0, 0.5]}]
    check_labelled_rows(None, rows, needed=True)
    with pytest.raises(ValueError, match="so --teacher-cache c would be ignored"):
        check_labelled_rows(None, rows, needed=True, cache=Path("c"))
