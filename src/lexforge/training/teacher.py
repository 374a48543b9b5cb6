"""The teacher of a run, by the options of its command line: BM25, or one whose embeddings are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexforge import data
from lexforge.common.types import Embeddings
from lexforge.data.columns import LABEL, text_columns
from lexforge.data.teacher import texts_to_fit
from lexforge.training.bm25_teacher import BM25Teacher

if TYPE_CHECKING:
    from datasets import Dataset

BM25 = "bm25"


def choose_teacher(named: str | None, of_preset: str, cache: Path | None) -> str:
    """Return the teacher of a run: that of the preset where the user names none.

    Args:
        named: The value of `--teacher`; None if it was not given.
        of_preset: The teacher of the preset.
        cache: The value of `--teacher-cache`; None if it was not given.

    Returns:
        `bm25`, or a name that `lexforge.data.load_teacher` takes.

    Raises:
        FileNotFoundError: If the teacher is neither a folder, nor on the hub, nor in its cache.
        ValueError: If the name is that of a file, or a cache is given for BM25, which needs none.
    """
    name = of_preset if named is None else named
    if name != BM25:
        data.check_teacher(name)
    elif cache is not None:
        raise ValueError(
            f"the teacher {BM25} scores texts as they come, so --teacher-cache {cache} would be ignored; "
            "leave it out, or name another --teacher"
        )
    return name


def load_teacher(name: str, documents: Sequence[str]) -> data.Teacher | BM25Teacher:
    """Load or fit the teacher that `choose_teacher` returns.

    Args:
        name: Its name.
        documents: The texts of the corpus. A fitted teacher and BM25 take at most 100,000 of them, evenly
            spaced (`texts_to_fit`).

    Returns:
        The teacher.

    Raises:
        DataError: If the model cannot be loaded or is no dense encoder.
        ValueError: If the corpus is too small to fit on.
    """
    if name != BM25:
        return data.load_teacher(name, documents)
    return BM25Teacher.fit(texts_to_fit(documents))


def embed_by_teacher(
    teacher: data.Teacher | BM25Teacher,
    rows: Sequence[Mapping[str, Any]] | Dataset,
    cache: Path | None,
) -> Embeddings:
    """Return what the collator looks the texts of the rows up in.

    Args:
        teacher: The teacher. BM25 looks any text up by itself; the embeddings of another one are computed
            once and kept.
        rows: Training rows under the column contract.
        cache: The folder that keeps them; None is a folder in the user's cache.

    Returns:
        The teacher itself, or the open cache of its embeddings.
    """
    if isinstance(teacher, BM25Teacher):
        return teacher
    return data.TeacherCache.build_for_rows(teacher, rows, cache)


def without_single_scores(
    rows: list[dict[str, Any]] | Dataset, name: str, *, say: Callable[[str], None]
) -> list[dict[str, Any]] | Dataset:
    """Leave scores out that BM25 can replace: those of rows with a positive alone, which compare nothing.

    Args:
        rows: Training rows under the column contract, at least one.
        name: The teacher of the run.
        say: Prints one line if scores are left out.

    Returns:
        The rows, without the column `label` if the teacher is BM25 and they have no negatives.
    """
    if name != BM25 or LABEL not in rows[0] or len(text_columns(rows[0])) > 2:
        return rows
    say(f"the column {LABEL!r} is left out: it scores one document per row, and {BM25} scores the batch")
    if isinstance(rows, list):
        return [{name: value for name, value in row.items() if name != LABEL} for row in rows]
    return rows.remove_columns(LABEL)
