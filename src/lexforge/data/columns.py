"""The column contract of training rows, and its validation.

A row holds `anchor` (the query), `positive` (a document that answers it) and `negative_1` .. `negative_n`
(documents that do not answer it). It may also hold `label`: 1 + n floats, a teacher's scores of the row's
documents, the positive's first. The text columns stand in this order, because sentence-transformers passes
them to a loss by position.

A row may also hold `relevant`, a list of integers: the identities (`lexforge.common.text_identity`) of all
documents that are judged relevant to the anchor. Our collators pass it to the losses, which leave those
documents out of the anchor's negatives (docs/losses.md, section 15). The collators of sentence-transformers
take every column except the label for text, so remove it for them: `dataset.remove_columns("relevant")`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lexforge.common.text_identity import NO_TEXT
from lexforge.common.types import DataError, TextKind
from lexforge.data.lines import as_number, excerpt, require_texts, stripped

if TYPE_CHECKING:
    from datasets import Dataset

ANCHOR, POSITIVE, LABEL, RELEVANT = "anchor", "positive", "label", "relevant"
_IDENTITIES = "expected a list of identities of texts (64-bit integers)"


def text_columns(names: Iterable[str]) -> list[str]:
    """Return the columns that hold texts, in their order.

    Args:
        names: The columns of a row or data set.

    Returns:
        Those of them that are `anchor`, `positive` or `negative_1` .. `negative_n`.
    """
    return [name for name in names if name in (ANCHOR, POSITIVE) or name.startswith("negative_")]


def text_kind(column: str) -> TextKind:
    """Return what the texts of a column are to a search: anchors are queries, all others are documents."""
    return "query" if column == ANCHOR else "document"


def column_names(rows: Any) -> list[str]:
    """Return the columns that a trainer receives.

    Args:
        rows: A `datasets.Dataset` or `IterableDataset`, or rows in a list.

    Returns:
        The names in their order; those that the transform of a data set makes, if it has one. None are known
        of a stream that does not tell them, or without a row.
    """
    if hasattr(rows, "column_names") and not has_transform(rows):
        return list(rows.column_names or [])
    return list(rows[0]) if len(rows) else []


def has_transform(rows: Any) -> bool:
    """Return whether a `datasets.Dataset` makes its rows by a function as they are read."""
    return hasattr(rows, "format") and rows.format["type"] == "custom"


def validate_columns(
    dataset: Dataset | Sequence[Mapping[str, Any]], place: Callable[[int], str] = "row {}".format
) -> tuple[str, ...]:
    """Check training rows against the column contract.

    Args:
        dataset: A `datasets.Dataset`, or rows such as those of `training_rows`.
        place: Names the row of an index in error messages, such as the line of a file.

    Returns:
        The text columns in order: anchor, positive, negative_1 .. negative_n.

    Raises:
        DataError: If there is no row, if a column is missing, unknown or out of order, or if `check_cells`
            refuses a cell.
    """
    if len(dataset) == 0:
        raise DataError("the training data holds no row")
    names = column_names(dataset)
    text_names = [name for name in names if name not in (LABEL, RELEVANT)]
    expected = [ANCHOR, POSITIVE, *(f"negative_{rank}" for rank in range(1, len(text_names) - 1))]
    if text_names != expected:
        raise DataError(
            f"{place(0)}: expected the text columns anchor, positive, negative_1 .. negative_n in this order "
            f"(and optionally relevant and label); received {excerpt(names)}"
        )
    check_cells(dataset, text_names, LABEL if LABEL in names else None, place)
    return tuple(text_names)


def check_cells(
    dataset: Dataset | Sequence[Mapping[str, Any]],
    text_names: Sequence[str],
    label: str | None,
    place: Callable[[int], str] = "row {}".format,
) -> None:
    """Check the cells of training rows whose columns are known, whatever their names are.

    Args:
        dataset: A `datasets.Dataset`, or rows such as those of `training_rows`. Each row is read once.
        text_names: The text columns by position: the anchor, the positive, then the negatives.
        label: The column of the teacher's scores, or None.
        place: Names the row of an index in error messages; by default by the index, which begins at 0.

    Raises:
        DataError: If there is no row, if a cell is not text, if an anchor or positive is blank, if a label is
            not a list of 1 + n finite numbers, or if `relevant` is not a list of 64-bit integers. The message
            names column, row and cell.
    """
    if len(dataset) == 0:
        raise DataError("the training data holds no row")
    names = [*text_names, *([] if label is None else [label])]
    if RELEVANT in column_names(dataset):
        if hasattr(dataset, "features") and not has_transform(dataset):
            _check_type_of_relevant(dataset)
        else:
            names.append(RELEVANT)
    for start, cells in _batches(dataset, names, place):
        for position, name in enumerate(text_names):
            for row, value in enumerate(cells[name], start):
                _check_text(name, place(row), value, may_be_blank=position > 1)
        if label is not None:
            for row, value in enumerate(cells[label], start):
                _check_label(label, place(row), value, len(text_names) - 1)
        if RELEVANT in names:
            checked: set[int] = set()  # the rows of a query share one list, which is checked once
            for row, value in enumerate(cells[RELEVANT], start):
                if id(value) not in checked:
                    _check_relevant(place(row), value)
                    checked.add(id(value))


def _batches(
    dataset: Any, names: Sequence[str], place: Callable[[int], str]
) -> Iterator[tuple[int, Mapping[str, Sequence[Any]]]]:
    """Yield (index of the first row, cells by column): all rows of a list, or a thousand of a data set."""
    if not hasattr(dataset, "column_names"):
        for row, record in enumerate(dataset):
            if record.keys() != dataset[0].keys():
                raise DataError(
                    f"{place(row)} has the columns {excerpt(list(record))}, {place(0)} has {list(dataset[0])}"
                )
        yield 0, {name: [record[name] for record in dataset] for name in names}
        return
    # A transform may read columns that are not trained on, so it is given whole rows.
    # A format, such as that of tensors, makes other types of the cells, which are not looked at.
    rows = dataset if has_transform(dataset) else dataset.with_format(None).select_columns(names)
    start = 0
    for batch in rows.iter(1000):
        for name in names:
            if name not in batch:
                raise DataError(
                    f"{place(start)}: the transform makes no column {name!r}, but it did for {place(0)}"
                )
        yield start, batch
        start += len(batch[names[0]])


def _check_text(name: str, where: str, value: object, *, may_be_blank: bool) -> None:
    if not isinstance(value, str):
        raise DataError(f"column {name!r}, {where}: expected text; received {excerpt(value)}")
    require_texts(where, **{name: value})
    # A blank document may be mined as a negative, but a blank query or positive teaches nothing.
    if not may_be_blank and not stripped(value):
        raise DataError(f"column {name!r}, {where}: the text is blank")


def _check_label(name: str, where: str, value: object, width: int) -> None:
    if not isinstance(value, (list, tuple)) or len(value) != width:
        raise DataError(
            f"column {name!r}, {where}: expected {width} teacher scores (the positive, then each "
            f"negative); received {excerpt(value)}"
        )
    if any(not isinstance(score, (int, float)) or as_number(score) is None for score in value):
        raise DataError(f"column {name!r}, {where}: expected finite numbers; received {excerpt(value)}")


def _check_relevant(where: str, value: object) -> None:
    for identity in value if isinstance(value, (list, tuple)) else [None]:
        if isinstance(identity, bool) or not isinstance(identity, int) or not -(2**63) <= identity < NO_TEXT:
            raise DataError(f"column 'relevant', {where}: {_IDENTITIES}; received {excerpt(value)}")


def _check_type_of_relevant(dataset: Any) -> None:
    """Refuse a column `relevant` of a data set by its type.

    The column has one type, and may hold tens of millions of identities: they are not read one by one.
    """
    feature, column = dataset.features[RELEVANT], dataset.data.column(RELEVANT)
    inner = getattr(getattr(feature, "feature", None), "dtype", None)
    if inner != "int64" or column.null_count or any(part.flatten().null_count for part in column.chunks):
        raise DataError(f"column 'relevant': {_IDENTITIES}; received the type {feature}, or missing values")
