"""A teacher's scores of listed (query, document) pairs: batched, sorted by length, cached and resumable.

Scores are written in blocks as they are computed, so a killed run loses one block at most, and the next run
with the same teacher goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lexforge.common.progress import Progress
from lexforge.common.types import DataError
from lexforge.data.columns import ANCHOR, LABEL, text_columns, validate_columns
from lexforge.data.retrieval_data import RetrievalData
from lexforge.storage.blocks import BlockCache, hash_keys
from lexforge.storage.files import cache_folder
from lexforge.teachers.cache import narrowed
from lexforge.teachers.scorers import Pair, PairScorer

if TYPE_CHECKING:
    from datasets import Dataset

FORMAT = "lexforge-pair-scores"
BLOCK_PAIRS = 1024
"""Pairs that are scored and written at a time, which is what a killed run can lose."""


def score_pairs(
    scorer: PairScorer, pairs: Iterable[Pair], folder: str | Path | None = None
) -> dict[Pair, float]:
    """Score pairs that the cache does not hold yet, with progress, and return the scores of all.

    Args:
        scorer: The teacher.
        pairs: Texts of queries and documents; repeats are scored once.
        folder: The folder of the cache, which may be that of an earlier or a killed run. None takes a folder
            with the teacher's name in the user's cache.

    Returns:
        Pair -> score, float32 as a Python float.

    Raises:
        ValueError: If there is no pair.
        DataError: If the folder holds something else, the cache of another teacher or a broken block, or if
            the teacher returns a wrong number of scores or one that is not finite.
    """
    wanted = list(dict.fromkeys(pairs))
    if not wanted:
        raise ValueError("received no pair to score")
    place = cache_folder("pair-scores", scorer.name) if folder is None else Path(folder)
    cache = BlockCache(place, FORMAT, np.float32)
    cache.refuse_other_teacher(scorer.name)
    keys = hash_keys(_key(pair) for pair in wanted)  # [N]
    # The longest pairs come first: they take the most memory, so a batch that is too large fails at once.
    # Pairs of one document stand together, because equal texts have equal lengths.
    missing = np.flatnonzero(~cache.known(keys))
    order = sorted(missing.tolist(), key=lambda row: (-scorer.length(wanted[row]), wanted[row][1]))
    with Progress(len(order), "teacher scores", "pairs", show=bool(order)) as progress:
        for start in range(0, len(order), BLOCK_PAIRS):
            rows = order[start : start + BLOCK_PAIRS]
            block = [wanted[row] for row in rows]
            scores = narrowed(scorer.score(block), (len(block),), np.float32, block)
            cache.append(scorer.name, keys[rows], scores[:, None])
            progress.update(len(rows))
    return dict(zip(wanted, cache.rows(keys)[:, 0].tolist(), strict=True))


def row_pairs(rows: Iterable[Mapping[str, Any]] | Dataset) -> list[Pair]:
    """List the (anchor, document) pairs of training rows, row by row, the positive first."""
    return [(row[ANCHOR], row[column]) for row in rows for column in text_columns(row) if column != ANCHOR]


def label_rows(
    rows: Sequence[Mapping[str, Any]] | Dataset, scores: Mapping[Pair, float]
) -> list[dict[str, Any]]:
    """Write a teacher's scores into training rows.

    Args:
        rows: Rows under the column contract, such as those of `lexforge mine`; a `label` that they
            have is replaced.
        scores: (anchor, document) -> score, of all pairs of the rows.

    Returns:
        The rows with `label`: 1 + n floats, the positive's score first.

    Raises:
        DataError: If the rows break the contract.
        KeyError: If a pair has no score.
    """
    documents = validate_columns(rows)[1:]
    return [{**row, LABEL: [scores[row[ANCHOR], row[column]] for column in documents]} for row in rows]


def listed_pairs(
    data: RetrievalData, split: str, run: Mapping[str, Mapping[str, float]] | None, depth: int
) -> list[tuple[str, str]]:
    """List the pairs of ids that training on a split may need: judged documents and a ranking's best.

    Args:
        data: The retrieval set.
        split: The split whose queries and judgements are listed.
        run: Query id -> document id -> score; None lists the judged documents only.
        depth: The number of best documents of each query of the run.

    Returns:
        (query id, document id), each pair once, query by query.

    Raises:
        ValueError: If `depth` is below 1.
        DataError: If the run names an unknown document.
    """
    if depth < 1:
        raise ValueError(f"depth must be at least 1; received {depth}")
    pairs = []
    for query, grades in data.split(split).items():
        found = {} if run is None else run.get(query, {})
        ranked = sorted(found, key=lambda document: -found[document])[:depth]
        for document in dict.fromkeys([*grades, *ranked]):
            if document not in data.corpus:
                raise DataError(f"the run names document {document!r}, which {data.name} lacks")
            pairs.append((query, document))
    return pairs


def _key(pair: Pair) -> bytes:
    """Return the bytes of a pair; the length of the query says where the document begins."""
    query, document = (text.encode("utf-8", "surrogatepass") for text in pair)
    return len(query).to_bytes(8, "little") + query + document
