"""The teacher of a run by its options and its rows: what a run would ignore or could not use is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexforge.data.columns import LABEL, text_columns
from lexforge.settings import BM25, FITTED_TEACHERS

if TYPE_CHECKING:
    from datasets import Dataset


_NEEDS_NEGATIVES = (
    "The scores of a teacher are compared within a row, and these rows have a positive and no negative: give "
    "--negatives mined, --negatives bm25 or --negatives judged, or a file of rows with negatives"
)


def check_teacher(
    named: str | None,
    of_preset: str,
    scores: Path | None = None,
    cache: Path | None = None,
    *,
    needed: bool,
) -> None:
    """Refuse a teacher whose files cannot be found, and options of a teacher that a run would ignore.

    The weights of the teacher are not loaded.

    Args:
        named: The value of `--teacher`; None if it was not given.
        of_preset: The teacher of the preset, which is that of the run where the user names none.
        scores: The value of `--teacher-scores`; None if it was not given.
        cache: The value of `--teacher-cache`; None if it was not given.
        needed: Whether the loss reads a teacher.

    Raises:
        ValueError: If a teacher and scores are both given, if one of the options is given to a run without
            distillation, if a cache is given beside scores or BM25, which need none, or if the name of the
            teacher is that of a file, or `none`.
        FileNotFoundError: If neither a folder, the hub nor its cache has the teacher.
    """
    if named is not None and scores is not None:
        raise ValueError(f"pass --teacher or --teacher-scores; received {named!r} and {str(scores)!r}")
    if cache is not None and scores is not None:
        raise ValueError(
            f"the scores of --teacher-scores {scores} take the place of a teacher, so --teacher-cache "
            f"{cache} would be ignored; leave one of them out"
        )
    options = {"teacher": named, "teacher-scores": scores, "teacher-cache": cache}
    given = [f"--{name} {value}" for name, value in options.items() if value is not None]
    if given and not needed:
        raise ValueError(
            f"the loss of this run reads no teacher, so {' and '.join(given)} would be ignored; choose a "
            "preset that distils (--preset lexforge, v26, v25 or v23), set --loss.distillation-weight, or "
            "leave it out"
        )
    name = named or of_preset
    if name.lower() == "none":  # as in `--negatives none`; the hub would be asked for a model of that name
        raise ValueError(
            f"--teacher names a teacher; received {name!r}. A run without one takes "
            "--loss.distillation-weight 0"
        )
    if cache is not None and name == BM25:
        raise ValueError(
            f"the teacher {BM25} scores texts as they come, so --teacher-cache {cache} would be ignored; "
            "leave it out, or name another --teacher"
        )
    if name not in FITTED_TEACHERS:
        from lexforge.models.names import check_model  # it loads torch, which other names need not wait for

        check_model(name)


def check_taught_rows(
    teacher: str | None,
    rows: Sequence[Mapping[str, Any]],
    *,
    needed: bool,
    cache: Path | None = None,
    mined: bool = False,
) -> None:
    """Refuse training rows that the teacher of the options cannot teach, or whose scores it would replace.

    Args:
        teacher: The value of `--teacher`; None if it was not given.
        rows: Training rows under the column contract, at least one.
        needed: Whether the loss reads a teacher.
        cache: The value of `--teacher-cache`; None if it was not given.
        mined: Whether the rows get negatives later.

    Raises:
        ValueError: If the rows carry the scores of a teacher and `--teacher` names another or a cache is
            given, or if a row has or would get a single score, with which nothing can be compared.
    """
    if not needed:
        return
    has_negatives = mined or len(text_columns(rows[0])) > 2
    if LABEL not in rows[0]:
        if teacher is not None and not has_negatives and scores_pairs(teacher):
            raise ValueError(f"{teacher} scores pairs of texts. {_NEEDS_NEGATIVES}")
        return
    if teacher is not None or cache is not None:
        given = f"--teacher {teacher}" if teacher is not None else f"--teacher-cache {cache}"
        raise ValueError(
            f"the rows carry the scores of a teacher in their column {LABEL!r}, so {given} would be ignored; "
            "leave the option out, or pass rows without that column"
        )
    if not has_negatives:
        raise ValueError(_NEEDS_NEGATIVES)


def scores_pairs(teacher: str) -> bool:
    """Return whether a teacher scores pairs of texts, because its files say that it has no dense embeddings.

    Args:
        teacher: A name that `--teacher` takes. One that nothing has scores no pairs.
    """
    if teacher in FITTED_TEACHERS:
        return False
    from lexforge.models.names import checked_name, model_type

    try:
        return model_type(checked_name(teacher)) in ("cross-encoder", "multi-vector", "sparse")
    except (FileNotFoundError, ValueError):  # what loads it says what is wrong with the name
        return False


def taught_by(teacher: str, scores: Path | None, rows: Sequence[Mapping[str, Any]]) -> str:
    """Name the teacher of a run that distils, for a reader.

    Args:
        teacher: The name of the teacher that the run has without scores.
        scores: The value of `--teacher-scores`; None if it was not given.
        rows: Training rows under the column contract, at least one.

    Returns:
        The name of the file of scores, the words "scores in the training rows", or the name of the teacher.
    """
    if scores is not None:
        return scores.name
    return "scores in the training rows" if LABEL in rows[0] else teacher


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
