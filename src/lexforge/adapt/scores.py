"""What teachers say of the candidates, and the average of several teachers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lexforge.common.types import Run
from lexforge.corpus import Vectors
from lexforge.models.names import checked_name, model_type
from lexforge.retrieval import FaissIndex, InvertedIndex
from lexforge.teachers import SentenceTransformerTeacher, TeacherCache, load_scorer, score_pairs

_BLOCK = 2**14  # pairs


def scores_by(
    name: str, pools: Mapping[str, Sequence[str]], queries: Mapping[str, str], texts: Mapping[str, str]
) -> Run:
    """Score the candidates of all queries by a model; what it says is cached on the disk and goes on there.

    Args:
        name: The folder or hub name of a dense encoder, whose embeddings of all texts are cached, or of a
            cross-encoder or another model of `lexforge.teachers.load_scorer`, whose scores of pairs are.
        pools: Query id -> document ids.
        queries: Query id -> text.
        texts: Document id -> text.

    Returns:
        Query id -> document id -> score.

    Raises:
        DataError: If the teacher cannot be loaded.
    """
    if model_type(checked_name(name)) == "dense":
        teacher = SentenceTransformerTeacher(name)
        cache = TeacherCache.build(teacher, queries.values(), texts.values())
        documents = cache.lookup(list(texts.values()), "document").astype(np.float32)  # [N, D]
        vectors = cache.lookup([queries[query] for query in pools], "query").astype(np.float32)  # [Q, D]
        places = {key: place for place, key in enumerate(texts)}
        return {
            query: dict(zip(pool, (documents[[places[key] for key in pool]] @ vector).tolist(), strict=True))
            for (query, pool), vector in zip(pools.items(), vectors, strict=True)
        }
    pairs = [(queries[query], texts[key]) for query, pool in pools.items() for key in pool]
    scores = score_pairs(load_scorer(name), pairs)
    return {query: {key: scores[queries[query], texts[key]] for key in pool} for query, pool in pools.items()}


def scores_in_index(
    index: InvertedIndex | FaissIndex, vectors: Vectors, pools: Mapping[str, Sequence[str]]
) -> Run:
    """Score the candidates of all queries by the vectors of an index.

    Args:
        index: The index of the documents.
        vectors: The vectors of the queries, in the order of the pools: CSR `[Q, V]` or an array `[Q, D]`.
        pools: Query id -> document ids.

    Returns:
        Query id -> document id -> dot product. Under cosine the queries are not scaled to unit length, which
        an average in units of spread does not see.
    """
    documents = index.vectors()  # [N, V] or [N, D]
    places = {key: place for place, key in enumerate(index.ids)}
    rows = np.repeat(np.arange(len(pools)), [len(pool) for pool in pools.values()])  # [pairs]
    columns = np.array([places[key] for pool in pools.values() for key in pool], np.int64)
    scores = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), _BLOCK):  # the rows of all pairs at once would take gigabytes
        part = slice(start, start + _BLOCK)
        left, right = vectors[rows[part]], documents[columns[part]]
        products = left * right if isinstance(left, np.ndarray) else left.multiply(right)
        scores[part] = np.asarray(products.sum(axis=1)).ravel()
    values = iter(scores.tolist())
    return {query: {key: next(values) for key in pool} for query, pool in pools.items()}


def scores_in_ranking(ranking: Run, pools: Mapping[str, Sequence[str]]) -> Run:
    """Return the scores of the candidates in a ranking by words, such as BM25's.

    Args:
        ranking: Query id -> document id -> score.
        pools: Query id -> document ids.

    Returns:
        Query id -> document id -> score, 0 for a document that the ranking does not hold.
    """
    return {query: {key: ranking[query].get(key, 0.0) for key in pool} for query, pool in pools.items()}


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
