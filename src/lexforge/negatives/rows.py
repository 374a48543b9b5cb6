"""Training rows of judged pairs, with negatives from any ranking and with a teacher's scores."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from lexforge.common.text_identity import text_identity
from lexforge.common.types import DataError, Run
from lexforge.data.columns import ANCHOR, LABEL, POSITIVE, RELEVANT
from lexforge.data.retrieval_data import RetrievalData
from lexforge.data.splits import TRAIN
from lexforge.negatives.rule import MinedRow, NegativeMiner, NegativeRule

logger = logging.getLogger(__name__)


def rows_of_judgements(
    data: RetrievalData,
    runs: Iterable[Run] | None = None,
    rule: NegativeRule | None = None,
    *,
    scores: Run | None = None,
) -> list[dict[str, Any]]:
    """Make one row for each (query, positive) pair of the split `train`.

    Args:
        data: The retrieval set; each query of `train` needs a positive.
        runs: Rankings of these queries in one or more blocks, such as those of `rankings` or `judged_run`.
            None makes rows without negatives.
        rule: Which documents of a ranking become negatives; None is `NegativeRule()`.
        scores: Query id -> document id -> teacher score; fills `label` for the documents of each row.

    Returns:
        Rows under the column contract, in the order of the rankings, or without them of the judgements;
        `rows_to_dataset` makes a data set of them. The log says how many rows had too few negatives.

    Raises:
        ValueError: If there is no split `train`.
        DataError: If a query has no positive, if no row has a negative, if a ranking names an unknown query
            or document, if the corpus is too small to fill a row, or if a score is missing.
    """
    where = f"{data.name}, split {TRAIN!r}"
    miner = NegativeMiner(data, rule or NegativeRule(), TRAIN)
    if runs is None:
        rows = [MinedRow(query, positive, (), 0) for query, positive in miner.pairs]
    else:
        rows = [row for run in runs for row in miner.mine(run)]
        if not any(row.mined for row in rows):
            raise DataError(f"{where}: none of the {len(miner.queries)} queries has a negative to draw")
        if sum(row.mined == miner.rule.per_row for row in rows) < len(miner.pairs):
            logger.warning("%s: %s", where, miner.summary(rows))
    columns = mined_columns(miner, rows)
    if scores is not None:
        for row, column in zip(rows, columns, strict=True):
            column[LABEL] = _row_scores(f"{where}, query {row.query!r}", scores.get(row.query, {}), row)
    return columns


def judged_run(data: RetrievalData) -> Run:
    """Return the documents that were judged and found not relevant (grade 0 or below), as one ranking.

    Args:
        data: The retrieval set, of which the split `train` is read.

    Returns:
        Query id -> document id -> 0, because no judgement says which of them is the better negative. A query
        may have none.
    """
    return {
        query: {document: 0.0 for document, grade in grades.items() if grade <= 0}
        for query, grades in data.split(TRAIN).items()
    }


def mined_columns(miner: NegativeMiner, rows: Iterable[MinedRow]) -> list[dict[str, Any]]:
    """Turn mined rows into training rows: `anchor`, `positive`, `negative_1` .. `negative_n`.

    Args:
        miner: The miner of the rows, which holds the texts.
        rows: Its rows. If a query among them has several relevant documents, every row also gets the column
            `relevant` with the identities of those of its query and of queries with the same text. (With one
            relevant document per query the column would say what `positive` says.)

    Returns:
        One dict per row, under the column contract. The rows of a query share one list of identities.
    """
    data, rows = miner.data, list(rows)
    relevant = _relevant(data, miner.split)
    several = any(len(relevant[data.queries[row.query]]) > 1 for row in rows)
    return [
        {ANCHOR: data.queries[row.query], POSITIVE: data.corpus[row.positive]}
        | {f"negative_{rank}": data.corpus[document] for rank, document in enumerate(row.negatives, start=1)}
        | ({RELEVANT: relevant[data.queries[row.query]]} if several else {})
        for row in rows
    ]


def _relevant(data: RetrievalData, split: str) -> dict[str, list[int]]:
    """Return the text of each query -> the identities of the documents that are judged relevant to it."""
    found: dict[str, dict[int, None]] = {}  # a dict for its order, and because documents may have equal texts
    for query, grades in data.split(split).items():
        identities = found.setdefault(data.queries[query], {})
        for document, grade in grades.items():
            if grade > 0:
                identities[text_identity(data.corpus[document])] = None
    return {text: list(identities) for text, identities in found.items()}


def _row_scores(where: str, scores: Mapping[str, float], row: MinedRow) -> list[float]:
    """Return the teacher's scores of a row's documents, the positive's first."""
    for document_id in (row.positive, *row.negatives):
        if document_id not in scores:
            filled = document_id in row.negatives[row.mined :]
            hint = (
                ", which was drawn at random to fill the row; shortage='drop' leaves such rows out"
                if filled
                else ""
            )
            raise DataError(f"{where}: there is no teacher score for the document {document_id!r}{hint}")
    return [float(scores[document_id]) for document_id in (row.positive, *row.negatives)]
