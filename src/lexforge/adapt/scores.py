"""What teachers say of the candidates, and the average of several teachers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from sentence_transformers.base.model import BaseModel

from lexforge.common.types import Run
from lexforge.settings import BM25
from lexforge.teachers.pairs import EncoderScorer, load_scorer, score_pairs

START = "start"
"""The name of the model before adaptation, where it is one of several teachers."""


def scores_by(
    name: str,
    start: BaseModel | None,
    rankings: Mapping[str, Run],
    pools: Mapping[str, Sequence[str]],
    queries: Mapping[str, str],
    texts: Mapping[str, str],
) -> Run:
    """Score the candidates of all queries by one teacher.

    Args:
        name: `bm25`, whose ranking gives the scores; `start`; or the folder or hub name of an encoder or a
            cross-encoder, whose scores are cached on the disk.
        start: The model before adaptation, None if it is no retriever.
        rankings: Those that the candidates come from, by their names.
        pools: Query id -> document ids.
        queries: Query id -> text.
        texts: Document id -> text.

    Returns:
        Query id -> document id -> score.

    Raises:
        DataError: If the teacher cannot be loaded.
        ValueError: If the start is to teach and is no retriever.
    """
    if name == BM25:  # a document that it does not find shares no word with the query
        ranking = rankings[BM25]
        return {query: {key: ranking[query].get(key, 0.0) for key in pool} for query, pool in pools.items()}
    if name == START and start is None:
        raise ValueError("the model is no retriever yet, so it cannot teach; leave out --teacher start")
    scorer = load_scorer(name) if name != START else EncoderScorer(start)
    pairs = [(queries[query], texts[key]) for query, pool in pools.items() for key in pool]
    scores = score_pairs(scorer, pairs)
    return {query: {key: scores[queries[query], texts[key]] for key in pool} for query, pool in pools.items()}


def average_in_spreads(teachers: Sequence[Run]) -> Run:
    """Average teachers whose scores have different scales, in units of their spread over each query.

    Args:
        teachers: Query id -> document id -> score, of each teacher; all score the same candidates.

    Returns:
        Query id -> document id -> mean over the teachers of (score - mean) / standard deviation, where mean
        and deviation are those of the query's candidates. A teacher that scores all of them equally counts 0.

    Raises:
        ValueError: If there is no teacher, or they score different candidates.
    """
    if not teachers:
        raise ValueError("at least one teacher is needed; received none")
    averaged: Run = {}
    for query, found in teachers[0].items():
        if any(scores[query].keys() != found.keys() for scores in teachers):
            raise ValueError(f"all teachers must score the same candidates; those of {query!r} differ")
        rows = np.array([[scores[query][document] for document in found] for scores in teachers])  # [T, N]
        spread = rows.std(axis=1, keepdims=True)
        units = np.divide(
            rows - rows.mean(axis=1, keepdims=True), spread, out=np.zeros_like(rows), where=spread > 0
        )
        averaged[query] = dict(zip(found, units.mean(axis=0).tolist(), strict=True))
    return averaged
