"""What a command line names is checked before the data is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexforge.data import check_language, check_teacher


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
