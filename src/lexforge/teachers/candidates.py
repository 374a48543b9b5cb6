"""The scores of candidates, query by query: those of any teacher, and the average of several teachers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from lexforge.common.types import Run
from lexforge.teachers.bm25 import BM25Teacher
from lexforge.teachers.cache import TeacherCache
from lexforge.teachers.load import Teacher
from lexforge.teachers.pair_scores import score_pairs
from lexforge.teachers.scorers import PairScorer

Pools: TypeAlias = Mapping[str, Sequence[str]]
"""Query id -> the ids of the documents that are scored."""


def candidate_scorer(
    teacher: Teacher,
    queries: Mapping[str, str],
    texts: Mapping[str, str],
    cache: str | Path | None = None,
) -> Callable[[Pools], Run]:
    """Return the function by which a teacher scores the candidates of queries.

    A killed run goes on where it was: embeddings of all queries and texts are computed here and kept on the
    disk, and so are the scores of pairs as they are asked for. BM25 keeps nothing.

    Args:
        teacher: The teacher, from `load_teacher`.
        queries: Query id -> text.
        texts: Document id -> text.
        cache: The folder that keeps embeddings or scores; None is a folder in the user's cache.

    Returns:
        The function. It takes pools, and returns query id -> document id -> score: the score of the pair, or
        the dot product of the embeddings.
    """
    if isinstance(teacher, PairScorer):

        def score_by_pairs(pools: Pools) -> Run:
            pairs = [(queries[query], texts[key]) for query, pool in pools.items() for key in pool]
            scores = score_pairs(teacher, pairs, cache) if pairs else {}
            return {
                query: {key: scores[queries[query], texts[key]] for key in pool}
                for query, pool in pools.items()
            }

        return score_by_pairs
    embeddings = (
        teacher
        if isinstance(teacher, BM25Teacher)
        else TeacherCache.build(teacher, queries.values(), texts.values(), cache)
    )

    def score_by_embeddings(pools: Pools) -> Run:
        scores = {}
        for query, pool in pools.items():
            anchor = embeddings.lookup([queries[query]], "query")[0].astype(np.float32)  # [D]
            documents = embeddings.lookup([texts[key] for key in pool], "document")  # [N, D]
            values = documents.astype(np.float32) @ anchor  # [N]
            scores[query] = dict(zip(pool, values.tolist(), strict=True))
        return scores

    return score_by_embeddings


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
        each = [[scores[query][document] for document in found] for scores in teachers]
        rows = np.array(each, np.float64)  # [T, N]
        spread = rows.std(axis=1, keepdims=True)
        # Equal numbers have a spread of rounding, because their mean is rounded.
        least = np.finfo(rows.dtype).eps * rows.shape[1] * np.abs(rows).max(axis=1, keepdims=True)
        units = np.divide(
            rows - rows.mean(axis=1, keepdims=True), spread, out=np.zeros_like(rows), where=spread > least
        )
        averaged[query] = dict(zip(found, units.mean(axis=0).tolist(), strict=True))
    return averaged
