"""The scores of candidates by the vectors of an index, which may be those of BM25."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lexforge.common.types import Run
from lexforge.corpus import Vectors
from lexforge.retrieval import FaissIndex, InvertedIndex

_BLOCK = 2**14  # pairs


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
