"""How an encoder uses its vocabulary: active terms per text, frequent and strong terms, dead terms."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SparseEncoder

from lexforge.corpus import Vectors
from lexforge.models import name_columns

SHOWN = 15  # terms that are listed
BINS = 40  # bars of a histogram, at most
BLOCK = 65_536  # rows that are counted at once


def term_statistics(
    model: SparseEncoder, queries: Vectors, documents: Vectors, stopword_ids: Collection[int] = ()
) -> dict[str, Any]:
    """Describe how queries and documents use the vocabulary.

    Args:
        model: The encoder, which names the terms.
        queries: CSR `[Q, V]`, Q >= 1.
        documents: CSR `[N, V]`, N >= 1.
        stopword_ids: Ids of the stop words.

    Returns:
        In JSON types: `vocabulary_size`, and for `queries` and `documents` each

        - `texts`, `mean_active`, `min_active`, `max_active`, `empty` (texts without an active term) and
          `histogram` with the `edges` and `counts` of active terms per text;
        - `dead_terms`, the number of terms that are active in no text;
        - `frequent`: term, share of the texts in which it is active, mean weight there, and whether it is a
          stop word; the most frequent first;
        - `strong`: term, sum of its weights divided by the number of texts, and whether it is a stop word;
          the strongest first.
    """
    stop_words = frozenset(stopword_ids)
    return {
        "vocabulary_size": int(documents.shape[1]),
        "queries": _statistics_of(model, queries, stop_words),
        "documents": _statistics_of(model, documents, stop_words),
    }


def is_punctuation(term: str) -> bool:
    """Whether a term has no letter and no digit, apart from what marks a piece of a word ("##", "▁", "Ġ")."""
    return not any(letter.isalnum() for letter in term.removeprefix("Ġ"))


def _statistics_of(model: SparseEncoder, vectors: Vectors, stop_words: frozenset[int]) -> dict[str, Any]:
    texts, width = vectors.shape
    active = np.diff(vectors.indptr)  # [texts]; a stored entry of a SPLADE vector is above 0
    frequency = np.zeros(width, np.int64)
    weight = np.zeros(width)
    # In blocks, because `bincount` copies the ids to int64 and the weights to float64.
    for start in range(0, texts, BLOCK):
        block = vectors[start : start + BLOCK]
        frequency += np.bincount(block.indices, minlength=width)
        weight += np.bincount(block.indices, weights=block.data, minlength=width)

    def listed(values: NDArray) -> list[int]:
        best = np.argsort(-values, kind="stable")[:SHOWN]
        return [int(term) for term in best if values[term] > 0]

    frequent, strong = listed(frequency), listed(weight)
    names = dict(zip([*frequent, *strong], name_columns(model, [*frequent, *strong]), strict=True))
    return {
        "texts": int(texts),
        "mean_active": round(float(active.mean()), 2),
        "min_active": int(active.min()),
        "max_active": int(active.max()),
        "empty": int((active == 0).sum()),
        "histogram": _histogram(active),
        "dead_terms": int((frequency == 0).sum()),
        "frequent": [
            [
                names[term],
                round(int(frequency[term]) / texts, 4),
                round(float(weight[term]) / int(frequency[term]), 4),
                term in stop_words,
            ]
            for term in frequent
        ],
        "strong": [
            [names[term], round(float(weight[term]) / texts, 4), term in stop_words] for term in strong
        ],
    }


def _histogram(active: NDArray) -> dict[str, list[int]]:
    """Count texts by their number of active terms, in bars of equal whole width."""
    first, last = int(active.min()), int(active.max())
    step = max(1, math.ceil((last + 1 - first) / BINS))
    edges = np.arange(first, last + step + 1, step)
    counts, _ = np.histogram(active, edges)
    return {"edges": edges.tolist(), "counts": counts.tolist()}
