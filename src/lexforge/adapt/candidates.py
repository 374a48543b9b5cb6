"""The documents that a teacher scores for each query, and the few of them that a training row compares."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from lexforge.common.types import Run
from lexforge.corpus import Vectors
from lexforge.data.columns import ANCHOR, LABEL, POSITIVE
from lexforge.retrieval import FaissIndex, InvertedIndex

_BLOCK = 2**14  # pairs


def candidate_pools(
    rankings: Sequence[Run], queries: Iterable[str], own: Mapping[str, str], size: int
) -> dict[str, list[str]]:
    """Unite the best documents of several rankings for each query, in turn from their tops.

    Args:
        rankings: Query id -> document id -> score, of each ranking, the best documents first.
        queries: Query ids.
        own: Query id -> the document that it was taken from, which is a candidate; real queries have none.
        size: Number of candidates per query.

    Returns:
        Query id -> at most `size` distinct documents.
    """
    pools = {}
    for query in queries:
        tops = zip_longest(*(ranking.get(query, {}) for ranking in rankings))
        found = [document for turn in tops for document in turn if document is not None]
        first = [own[query]] if query in own else []
        pools[query] = list(dict.fromkeys(first + found))[:size]
    return pools


def scores_in_index(
    index: InvertedIndex | FaissIndex, vectors: Vectors, pools: Mapping[str, Sequence[str]]
) -> Run:
    """Score the candidates of all queries by the vectors of an index.

    Args:
        index: The index of the documents, such as `BM25Index.index`.
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


def listed_rows(
    texts: Mapping[str, str],
    scores: Run,
    queries: Mapping[str, str],
    documents: int,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Make training rows that compare documents over the whole range of a teacher's scores.

    The candidates are ordered by score and divided into as many strata as a row has documents. Each stratum
    gives one at random, and the first one its best.

    Args:
        texts: Document id -> text.
        scores: Query id -> document id -> the teacher's score.
        queries: Query id -> text.
        documents: Number of documents in a row, at least 2.
        seed: Seed of the draws.

    Returns:
        Rows with `anchor`, `positive`, `negative_1`, ... and `label`, the scores; the best document comes
        first. A query with too few candidates, or with equal scores of all, has no row.

    Source: stratified over the teacher's range, arXiv 2604.04734.
    """
    rows = []
    for query, found in scores.items():
        ranked = sorted(found, key=found.__getitem__, reverse=True)
        if len(ranked) < documents or found[ranked[0]] == found[ranked[-1]]:
            continue
        draw = random.Random(f"{seed} {query}")
        strata = np.array_split(np.arange(len(ranked)), documents)
        chosen = [ranked[0], *(ranked[draw.choice(stratum.tolist())] for stratum in strata[1:])]
        columns = [POSITIVE, *(f"negative_{place}" for place in range(1, documents))]
        row: dict[str, Any] = {ANCHOR: queries[query]}
        row |= {column: texts[document] for column, document in zip(columns, chosen, strict=True)}
        rows.append(row | {LABEL: [found[document] for document in chosen]})
    return rows
