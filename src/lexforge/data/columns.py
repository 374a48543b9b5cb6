"""The column contract of training rows, and its validation.

A row holds `anchor` (the query), `positive` (a document that answers it), `negative_1` .. `negative_n`
(documents that do not) and optionally `label`: a teacher's scores of the row's documents, positive first, 1 +
n floats. The text columns stand in this order, because sentence-transformers hands them to a loss by
position.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lexforge.data.lines import excerpt, is_finite, require_texts
from lexforge.data.retrieval_data import DataError, RetrievalData

if TYPE_CHECKING:
    from datasets import Dataset

ANCHOR, POSITIVE, LABEL = "anchor", "positive", "label"


def training_rows(
    data: RetrievalData,
    split: str = "train",
    negatives: Mapping[str, Sequence[str]] | None = None,
    *,
    negatives_per_row: int = 1,
    scores: Mapping[str, Mapping[str, float]] | None = None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """One row for each (query, positive) pair of a split, in the order of its judgements.

    Args:
        data: The retrieval set.
        split: The split to train on; every query of it needs a positive.
        negatives: Query id -> document ids to draw negatives from, such as `judged_negatives` or mined ones;
            without it a row has none.
        negatives_per_row: How many negatives each row gets, drawn without replacement.
        scores: Query id -> document id -> teacher score; fills `label` for the documents of each row.
        seed: Of the draw of negatives.

    Returns:
        Rows under the column contract; `datasets.Dataset.from_list` makes a dataset of them.

    Raises:
        ValueError: An unknown split, or `negatives_per_row` below 1.
        DataError: A query without a positive, without enough negatives, with a negative that is one of its
            positives or no document at all, or a missing score.
    """
    if negatives_per_row < 1:
        raise ValueError(f"negatives_per_row must be at least 1, got {negatives_per_row}")
    generator = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for query_id, grades in data.split(split).items():
        where = f"{data.name}, split {split!r}, query {query_id!r}"
        positives = [document_id for document_id, grade in grades.items() if grade > 0]
        if not positives:
            raise DataError(f"{where}: no positive (a grade above 0) to train on")
        pool = [] if negatives is None else _negative_pool(where, data, negatives, query_id, positives)
        for positive in positives:
            documents = [positive]
            if negatives is not None:
                if len(pool) < negatives_per_row:
                    raise DataError(
                        f"{where}: {len(pool)} negatives, fewer than the {negatives_per_row} asked"
                    )
                documents += generator.sample(pool, negatives_per_row)
            row: dict[str, Any] = {ANCHOR: data.queries[query_id], POSITIVE: data.corpus[positive]}
            for rank, document_id in enumerate(documents[1:], start=1):
                row[f"negative_{rank}"] = data.corpus[document_id]
            if scores is not None:
                row[LABEL] = _row_scores(where, scores, query_id, documents)
            rows.append(row)
    return rows


def judged_negatives(data: RetrievalData, split: str = "train") -> dict[str, list[str]]:
    """The documents that were judged and found not relevant (grade 0 or below), by query id."""
    return {
        query_id: [document_id for document_id, grade in grades.items() if grade <= 0]
        for query_id, grades in data.split(split).items()
    }


def validate_columns(dataset: Dataset | Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Check training rows against the column contract.

    Args:
        dataset: A `datasets.Dataset`, or rows such as those of `training_rows`.

    Returns:
        The text columns in order: anchor, positive, negative_1 .. negative_n.

    Raises:
        DataError: No row; a column missing, unknown or out of order; a cell that is not text, an anchor or
            positive without text; a label that is not a list of 1 + n finite numbers. Column, row and cell
            are named.
    """
    if len(dataset) == 0:
        raise DataError("the training data holds no row")
    names = list(getattr(dataset, "column_names", None) or dataset[0])
    text_names = [name for name in names if name != LABEL]
    expected = [ANCHOR, POSITIVE, *(f"negative_{rank}" for rank in range(1, len(text_names) - 1))]
    if text_names != expected:
        raise DataError(
            f"expected the text columns anchor, positive, negative_1 .. negative_n in this order "
            f"(and optionally label), got {excerpt(names)}"
        )
    for name in text_names:
        for row, value in enumerate(_column(dataset, name)):
            _check_text(name, row, value)
    if LABEL in names:
        for row, value in enumerate(_column(dataset, LABEL)):
            _check_label(row, value, len(text_names) - 1)
    return tuple(text_names)


def _negative_pool(
    where: str,
    data: RetrievalData,
    negatives: Mapping[str, Sequence[str]],
    query_id: str,
    positives: Sequence[str],
) -> list[str]:
    pool = list(negatives.get(query_id, ()))
    for document_id in pool:
        if document_id not in data.corpus:
            raise DataError(f"{where}: the negative {document_id!r} is not in the corpus")
        if document_id in positives:
            raise DataError(f"{where}: {document_id!r} is both a positive and a negative")
    return pool


def _row_scores(
    where: str, scores: Mapping[str, Mapping[str, float]], query_id: str, documents: Sequence[str]
) -> list[float]:
    of_query = scores.get(query_id, {})
    for document_id in documents:
        if document_id not in of_query:
            raise DataError(f"{where}: no teacher score for the document {document_id!r}")
    return [float(of_query[document_id]) for document_id in documents]


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
