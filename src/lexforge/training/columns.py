"""The columns that a trainer reads from a data set: texts by position, and one label."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lexforge.common.types import DataError, TextKind
from lexforge.data.columns import ANCHOR, POSITIVE, RELEVANT, check_cells, column_names, has_transform

logger = logging.getLogger(__name__)
DATASET_NAME = "dataset_name"  # sentence-transformers adds this column where a data set has a name


def label_column(names: Iterable[str], label_columns: Sequence[str]) -> str | None:
    """Return the column that sentence-transformers takes as the label.

    Args:
        names: The columns of a data set.
        label_columns: The names of labels, the first one that is found wins.

    Returns:
        Its name, or None.
    """
    found = set(names)
    return next((name for name in label_columns if name in found and name != RELEVANT), None)


def loss_columns(names: Iterable[str], label_columns: Sequence[str]) -> list[str]:
    """Return the columns that a loss receives as texts, in their order.

    Args:
        names: The columns of a data set or a row.
        label_columns: The names of labels.

    Returns:
        All other names, without `relevant` and the name of the data set.
    """
    return [name for name in names if name not in (*label_columns, RELEVANT, DATASET_NAME)]


def kinds_of_columns(columns: Iterable[str]) -> dict[str, TextKind]:
    """Return what the texts of each column are to a search: the first holds queries, all others documents."""
    return {column: "document" if place else "query" for place, column in enumerate(columns)}


def without_extra_columns(dataset: Any, label_columns: Sequence[str], where: str) -> Any:
    """Drop the columns of a data set that no loss reads, and log one line that names them.

    sentence-transformers takes every column except the label for text, by position. So do the trainers here,
    but for these, which are dropped:

    - numbers, truth values, times and lists of them, unless they are the label or `relevant`;
    - further columns that could be labels, since only the first one is read;
    - ids, by their name (`id`, `..._id`, `..._ids`, `..._idx`).

    A data set whose rows are made by a transform is left as it is.

    Args:
        dataset: A `Dataset`, an `IterableDataset`, a dictionary of data sets by name, or None.
        label_columns: The names of labels, the first one that is found wins.
        where: The name of the data set for the log.

    Returns:
        The data set without those columns.
    """
    # Imported here: `datasets` is missing where a loss is only timed.
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

    if isinstance(dataset, dict) and not isinstance(dataset, IterableDatasetDict):
        # Copies (of the view, not of the data): sentence-transformers writes the name into each data set, and
        # one data set may stand under several names.
        kept = {
            name: without_extra_columns(copy.copy(one), label_columns, f"{where}[{name!r}]")
            for name, one in dataset.items()
        }
        return DatasetDict(kept) if isinstance(dataset, DatasetDict) else kept
    if not isinstance(dataset, (Dataset, IterableDataset)) or dataset.features is None:
        return dataset
    if has_transform(dataset):
        return dataset
    extra = _extra_columns(dataset.features, label_columns)
    if not extra:
        return dataset
    logger.warning("%s: the columns %s are dropped, because no loss reads them", where, extra)
    return dataset.remove_columns(extra)


def check_training_rows(dataset: Any, label_columns: Sequence[str], *, labels_are_read: bool) -> None:
    """Check the rows for a `NeuralSparseLoss`; see `lexforge.data.columns.check_cells`.

    The rows of a stream cannot be read ahead: only the number of its text columns is checked.

    Args:
        dataset: A `Dataset`, an `IterableDataset`, or rows in a list.
        label_columns: The names of labels, the first one that is found wins.
        labels_are_read: Whether the loss reads the scores of a teacher; otherwise a label may be anything.

    Raises:
        DataError: If there are fewer than two text columns, or a cell is not what its column must hold.
    """
    from datasets import IterableDataset

    names = column_names(dataset)
    texts = loss_columns(names, label_columns)
    if names and len(texts) < 2:
        raise DataError(
            "NeuralSparseLoss needs two or more text columns, in the order anchor, positive and then any "
            f"negatives; received {names}"
        )
    if not isinstance(dataset, IterableDataset):
        check_cells(dataset, texts, label_column(names, label_columns) if labels_are_read else None)


def texts_of_rows(rows: Any, label_columns: Sequence[str], *, most: int) -> dict[TextKind, list[str]]:
    """Return the distinct queries and documents of training rows; of many rows, those of evenly spaced ones.

    Args:
        rows: A `Dataset`, an `IterableDataset` (its first rows are read), or several by name. The first text
            column holds queries, the others hold documents.
        label_columns: The names of labels, which are no texts.
        most: Number of texts of each kind that is enough. Of a `Dataset`, 4 to 8 times as many rows are read
            at most, because a query stands in several.

    Returns:
        Texts by their kind.
    """
    from datasets import Dataset  # missing where a loss is only timed

    texts: dict[TextKind, dict[str, None]] = {"query": {}, "document": {}}
    for dataset in rows.values() if isinstance(rows, dict) else [rows]:
        read = dataset if isinstance(dataset, Dataset) else Dataset.from_list(list(dataset.take(most)))
        read = read.select(range(0, len(read), max(1, len(read) // (4 * most))))
        cells = read[:]
        for column, kind in kinds_of_columns(loss_columns(cells, label_columns)).items():
            texts[kind].update(dict.fromkeys(cells[column]))
    return {kind: list(found) for kind, found in texts.items()}


def _extra_columns(features: Mapping[str, Any], label_columns: Sequence[str]) -> list[str]:
    kept = (ANCHOR, POSITIVE, RELEVANT, DATASET_NAME, label_column(features, label_columns))
    return [
        name
        for name, feature in features.items()
        if name not in kept and (name in label_columns or _is_id(name) or _holds_numbers(feature))
    ]


def _is_id(name: str) -> bool:
    return name == "id" or name.endswith(("_id", "_ids", "_idx"))


def _holds_numbers(feature: Any) -> bool:
    """Whether a column holds numbers, truth values or times, or lists of them."""
    from datasets import Audio, Image, Value, Video

    while not isinstance(feature, (Audio, Image, Value, Video)) and hasattr(feature, "feature"):
        feature = feature.feature  # the type of a list's items
    dtype = str(getattr(feature, "dtype", ""))
    return dtype.startswith(("int", "uint", "float", "bool", "time", "date", "duration", "decimal"))
