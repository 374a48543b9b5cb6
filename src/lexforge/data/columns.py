"""The column contract of training rows, and its validation.

A row holds `anchor` (the query), `positive` (a document that answers it), `negative_1` .. `negative_n`
(documents that do not) and optionally `label`: a teacher's scores of the row's documents, positive first, 1 +
n floats. It may also hold `relevant`, a list of integers: the identities (`lexforge.common.text_identity`) of
all documents that are judged relevant to the anchor. Our collators hand it to the losses, which leave those
documents out of the anchor's negatives (docs/losses.md, section 15); the collators of sentence-transformers
take every column but the label for text, so drop it for them: `dataset.remove_columns("relevant")`. The text
columns stand in this order, because sentence-transformers hands them to a loss by
position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lexforge.common.text_identity import NO_TEXT
from lexforge.data.lines import excerpt, is_finite, require_texts
from lexforge.data.retrieval_data import DataError

if TYPE_CHECKING:
    from datasets import Dataset

ANCHOR, POSITIVE, LABEL, RELEVANT = "anchor", "positive", "label", "relevant"


def validate_columns(dataset: Dataset | Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Check training rows against the column contract.

    Args:
        dataset: A `datasets.Dataset`, or rows such as those of `training_rows`.

    Returns:
        The text columns in order: anchor, positive, negative_1 .. negative_n.

    Raises:
        DataError: No row; a column missing, unknown or out of order; a cell that is not text, an anchor or
            positive without text; a label that is not a list of 1 + n finite numbers; a `relevant` that is
            not a list of 64-bit integers. Column, row and cell are named.
    """
    if len(dataset) == 0:
        raise DataError("the training data holds no row")
    names = list(getattr(dataset, "column_names", None) or dataset[0])
    text_names = [name for name in names if name not in (LABEL, RELEVANT)]
    expected = [ANCHOR, POSITIVE, *(f"negative_{rank}" for rank in range(1, len(text_names) - 1))]
    if text_names != expected:
        raise DataError(
            f"expected the text columns anchor, positive, negative_1 .. negative_n in this order "
            f"(and optionally relevant and label), got {excerpt(names)}"
        )
    for name in text_names:
        for row, value in enumerate(_column(dataset, name)):
            _check_text(name, row, value)
    if LABEL in names:
        for row, value in enumerate(_column(dataset, LABEL)):
            _check_label(row, value, len(text_names) - 1)
    if RELEVANT in names:
        for row, value in enumerate(_column(dataset, RELEVANT)):
            _check_relevant(row, value)
    return tuple(text_names)


def _column(dataset: Any, name: str) -> list[Any]:
    if hasattr(dataset, "column_names"):
        return list(dataset[name][:])
    for row, record in enumerate(dataset):
        if record.keys() != dataset[0].keys():
            raise DataError(
                f"row {row} has the columns {excerpt(list(record))}, row 0 has {list(dataset[0])}"
            )
    return [record[name] for record in dataset]


def _check_text(name: str, row: int, value: object) -> None:
    if not isinstance(value, str):
        raise DataError(f"column {name!r}, row {row}: expected text, got {excerpt(value)}")
    require_texts(f"row {row}", **{name: value})
    # A blank document may be mined as a negative; nothing can be learnt from a blank query or positive.
    if name in (ANCHOR, POSITIVE) and not value.strip():
        raise DataError(f"column {name!r}, row {row}: the text is blank")


def _check_label(row: int, value: object, width: int) -> None:
    if not isinstance(value, (list, tuple)) or len(value) != width:
        raise DataError(
            f"column 'label', row {row}: expected {width} teacher scores (the positive, then each negative), "
            f"got {excerpt(value)}"
        )
    if not all(map(is_finite, value)):
        raise DataError(f"column 'label', row {row}: expected finite numbers, got {excerpt(value)}")


def _check_relevant(row: int, value: object) -> None:
    identities = value if isinstance(value, (list, tuple)) else [None]
    for identity in identities:
        if isinstance(identity, bool) or not isinstance(identity, int) or not -(2**63) <= identity < NO_TEXT:
            raise DataError(
                f"column 'relevant', row {row}: expected a list of identities of texts (64-bit integers), "
                f"received {excerpt(value)}"
            )
