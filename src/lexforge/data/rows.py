"""Training rows of judged pairs, with negatives from given candidates and with a teacher's scores."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lexforge.data.columns import LABEL, RELEVANT
from lexforge.data.negatives import (
    MinedRow,
    NegativeMiner,
    NegativeRule,
    Scores,
    Shortage,
    mined_columns,
)
from lexforge.data.retrieval_data import DataError, RetrievalData

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


def training_rows(
    data: RetrievalData,
    split: str = "train",
    negatives: Mapping[str, Sequence[str]] | None = None,
    *,
    negatives_per_row: int = 1,
    shortage: Shortage = "random",
    scores: Scores | None = None,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Make one row for each (query, positive) pair of a split, in the order of its judgements.

    Args:
        data: The retrieval set.
        split: The split to train on; each of its queries needs a positive.
        negatives: Query id -> ids of the documents from which its negatives are drawn, such as those of
            `judged_negatives` or mined ones; None makes rows without negatives. `NegativeMiner` says which of
            them may be negatives.
        negatives_per_row: The number of negatives of each row, drawn without replacement.
        shortage: What happens to a row whose query has too few candidates, as in `NegativeRule`; the log says
            how many rows there are.
        scores: Query id -> document id -> teacher score; fills `label` for the documents of each row.
        seed: The seed of the draw of negatives.

    Returns:
        Rows under the column contract; `rows_to_dataset` makes a data set of them.

    Raises:
        ValueError: If the split or the shortage is unknown, or if `negatives_per_row` is below 1.
        DataError: If a query has no positive, if no row has a negative, if a negative is a positive of its
            query or no document at all, if the corpus is too small to fill a row, or if a score is missing.
    """
    where = f"{data.name}, split {split!r}"
    longest = max([1, *map(len, (negatives or {}).values())])
    rule = NegativeRule(negatives_per_row, last_rank=longest, shortage=shortage, seed=seed)
    miner = NegativeMiner(data, rule, split)
    if negatives is None:
        rows = [MinedRow(query, positive, (), 0) for query, positive in miner.pairs]
    else:
        # The candidates pass as a ranking in which all have the same score, so the miner draws at random.
        grades = data.split(split)
        run = {query: dict.fromkeys(negatives.get(query, ()), 0.0) for query in grades}
        for query, candidates in run.items():
            _check_candidates(f"{where}, query {query!r}", data, candidates, grades[query])
        rows = miner.mine(run)
        if not any(row.mined for row in rows):
            raise DataError(f"{where}: none of the {len(grades)} queries has a negative to draw")
        if sum(row.mined == negatives_per_row for row in rows) < len(miner.pairs):
            logger.warning("%s: %s", where, miner.summary(rows))
    columns = mined_columns(data, rows, split)
    if scores is not None:
        for row, column in zip(rows, columns, strict=True):
            column[LABEL] = _row_scores(f"{where}, query {row.query!r}", scores.get(row.query, {}), row)
    return columns


def rows_to_dataset(rows: Sequence[Mapping[str, Any]] | Dataset) -> Dataset:
    """Make a data set of training rows.

    It holds what `datasets.Dataset.from_list` would, but that function needs many times the memory of the
    column `relevant`, which repeats the list of a query in each of the query's rows.

    Args:
        rows: Rows under the column contract, at least one; a data set is returned as it is.

    Returns:
        The data set; its columns are those of the first row.
    """
    import pyarrow as pa
    from datasets import Dataset

    if isinstance(rows, Dataset):
        return rows

    columns = {}
    for name in rows[0]:
        cells = [row[name] for row in rows]
        columns[name] = _lists_of_integers(cells) if name == RELEVANT else pa.array(cells)
    table = pa.table(columns)
    # A name for caches that follows from the content; `datasets` would pickle the whole table to find one.
    digest = hashlib.blake2b(repr(table.schema).encode(), digest_size=8)
    for column in table.columns:
        for buffer in (buffer for part in column.chunks for buffer in part.buffers() if buffer is not None):
            digest.update(buffer)
    return Dataset(table, fingerprint=digest.hexdigest())


def _lists_of_integers(lists: Sequence[Sequence[int]]) -> Any:
    """Return lists of 64-bit integers as one Arrow array; a list of many rows is converted once."""
    import pyarrow as pa

    arrays: dict[int, NDArray[np.int64]] = {}  # by the identity of the list, which `lists` keeps alive
    parts = []
    for values in lists:
        if id(values) not in arrays:
            arrays[id(values)] = np.array(values, dtype=np.int64)
        parts.append(arrays[id(values)])
    offsets = np.cumsum([0, *map(len, parts)])  # [rows + 1]
    return pa.LargeListArray.from_arrays(offsets, np.concatenate(parts))


def judged_negatives(data: RetrievalData, split: str = "train") -> dict[str, list[str]]:
    """Return the documents that were judged and found not relevant (grade 0 or below), by query id.

    Args:
        data: The retrieval set.
        split: The split whose judgements are read.

    Returns:
        Query id -> document ids; the list of a query may be empty.
    """
    return {
        query_id: [document_id for document_id, grade in grades.items() if grade <= 0]
        for query_id, grades in data.split(split).items()
    }


def _check_candidates(
    where: str, data: RetrievalData, candidates: Iterable[str], grades: Mapping[str, int]
) -> None:
    """Refuse candidates for negatives that are no document of the corpus or a positive of the query."""
    for document_id in candidates:
        if document_id not in data.corpus:
            raise DataError(f"{where}: the negative {document_id!r} is not in the corpus")
        if grades.get(document_id, 0) > 0:
            raise DataError(f"{where}: {document_id!r} is both a positive and a negative")


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
