"""BM25 against a model before training, on training queries: whether BM25 has anything to teach it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lexforge.common.ranks import from_first_rank
from lexforge.common.samples import evenly_spaced
from lexforge.data.columns import ANCHOR, POSITIVE
from lexforge.evaluation.evaluator import RetrievalEvaluator
from lexforge.evaluation.retrieval_task import evaluate_bm25

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import SparseEncoder

ROWS = 2000
"""Training rows that are compared at most; their positives are what is searched."""
MEASURE = "nDCG@10"


def compare_with_bm25(model: SparseEncoder, rows: Sequence[Mapping[str, Any]] | Dataset) -> dict[str, float]:
    """Measure BM25 and a model on queries of the training rows, whose positives are the corpus.

    The queries of dev and test stay unseen.

    Args:
        model: The model before training.
        rows: Training rows with the columns `anchor` and `positive`, at least one. Of more than `ROWS` rows,
            evenly spaced ones are compared.

    Returns:
        "bm25" and "model" -> nDCG@10, equal on all ranks, of which the first one measures.
    """
    return from_first_rank(lambda: _compare(model, rows))


def _compare(model: SparseEncoder, rows: Sequence[Mapping[str, Any]] | Dataset) -> dict[str, float]:
    queries: dict[str, str] = {}  # text -> id, as for the documents
    documents: dict[str, str] = {}
    judged: dict[str, dict[str, int]] = {}
    for place in evenly_spaced(len(rows), ROWS):
        row = rows[place]
        query = queries.setdefault(row[ANCHOR], f"q{len(queries)}")
        judged.setdefault(query, {})[documents.setdefault(row[POSITIVE], f"d{len(documents)}")] = 1
    corpus = {number: text for text, number in documents.items()}
    evaluator = RetrievalEvaluator(
        {number: text for text, number in queries.items()},
        corpus,
        judged,
        metrics=[MEASURE],
        latency_queries=0,
        show_progress_bar=True,
    )
    return {
        "bm25": evaluate_bm25(evaluator).metrics[MEASURE],
        "model": evaluator.evaluate(model).metrics[MEASURE],
    }
