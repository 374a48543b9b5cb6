"""The evaluation of a retrieval recipe: one split of a data set, and BM25 measured on the same queries."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sentence_transformers import SentenceTransformer, SparseEncoder

from lexforge.common.ranks import from_first_rank
from lexforge.common.samples import evenly_spaced
from lexforge.corpus import encoding_speed
from lexforge.data import RetrievalData, sample_corpus
from lexforge.data.columns import ANCHOR, POSITIVE
from lexforge.evaluation.evaluator import RetrievalEvaluator, RetrievalResult
from lexforge.evaluation.metrics import score_run
from lexforge.evaluation.trec import check_run_ids

if TYPE_CHECKING:
    from datasets import Dataset

COMPARED_ROWS = 2000
"""Training rows that are compared with BM25 at most; their positives are what is searched."""
COMPARED_MEASURE = "nDCG@10"
logger = logging.getLogger(__name__)


def evaluator_of_split(data: RetrievalData, split: str, name: str = "") -> RetrievalEvaluator:
    """Build the evaluator of one split, after a check that its run can be written as a TREC file.

    Args:
        data: The retrieval set.
        split: The split whose queries are measured, over the whole corpus.
        name: Prefix of the measures, such as `dev` for an evaluation during training.

    Returns:
        The evaluator, which shows how far it has come.

    Raises:
        ValueError: If there is no such split, or an id cannot stand in a TREC file.
    """
    queries = data.split_queries(split)
    check_run_ids(queries, data.corpus)
    return RetrievalEvaluator(queries, data.corpus, data.split(split), name=name, show_progress_bar=True)


def evaluators_by_split(data: RetrievalData, splits: Sequence[str]) -> dict[str, RetrievalEvaluator]:
    """Build the evaluators of the splits that a run measures.

    Args:
        data: The retrieval set.
        splits: The splits; `test` is measured at the ends of a run, another one during training.

    Returns:
        Split -> evaluator. The measures of every split but `test` have its name as their prefix.

    Raises:
        ValueError: If there is no such split, or an id cannot stand in a TREC file.
    """
    names = {split: "" if split == "test" else split for split in splits}
    return {split: evaluator_of_split(data, split, name) for split, name in names.items()}


def evaluate_within(
    seconds: float,
    model: SparseEncoder | SentenceTransformer,
    evaluator: RetrievalEvaluator,
    data: RetrievalData,
) -> tuple[RetrievalResult, int]:
    """Measure a model on the whole corpus, or on a sample if encoding all documents would take too long.

    Args:
        seconds: What encoding the documents may take, by the time that a few take.
        model: The encoder.
        evaluator: The evaluator of the split `test` over the whole corpus.
        data: The retrieval set.

    Returns:
        What was measured, and how many documents were searched: all of them, or the judged ones and a random
        sample, which may take longer where many are judged.

    Raises:
        ValueError: If there is no such split.
    """
    per_second, _ = encoding_speed(model, data.corpus.values())
    fit = int(per_second * seconds)
    if fit >= len(data.corpus):
        return evaluator.evaluate(model), len(data.corpus)
    sample = sample_corpus(data, max(1, fit), ["test"])
    logger.info(
        "encoding %d documents would take over %g s: the model searches %d of them, and finds more there",
        len(data.corpus),
        seconds,
        len(sample.corpus),
    )
    return evaluator_of_split(sample, "test").evaluate(model), len(sample.corpus)


def evaluate_bm25(evaluator: RetrievalEvaluator) -> RetrievalResult:
    """Measure BM25 on the queries of an evaluator, as the baseline of a model.

    Args:
        evaluator: Gives the documents, the queries, the judgements, the measures and the number of hits per
            query.

    Returns:
        Measures, run and values of each query; no sparsity and no timing.
    """
    run = evaluator.search(evaluator.bm25, evaluator.query_texts)
    scores = score_run(run, evaluator.qrels, evaluator.metrics)
    return RetrievalResult(scores.mean, run, scores.per_query, sparsity={}, timing={})


def compare_with_bm25(model: SparseEncoder, rows: Sequence[Mapping[str, Any]] | Dataset) -> dict[str, float]:
    """Measure BM25 and a model on queries of the training rows, whose positives are the corpus.

    The queries of dev and test stay unseen.

    Args:
        model: The model before training.
        rows: Training rows with the columns `anchor` and `positive`, at least one. Of more than
            `COMPARED_ROWS` rows, evenly spaced ones are compared.

    Returns:
        "bm25" and "model" -> nDCG@10, equal on all ranks, of which the first one measures.
    """
    return from_first_rank(lambda: _compare(model, rows))


def _compare(model: SparseEncoder, rows: Sequence[Mapping[str, Any]] | Dataset) -> dict[str, float]:
    queries: dict[str, str] = {}  # text -> id, as for the documents
    documents: dict[str, str] = {}
    judged: dict[str, dict[str, int]] = {}
    for place in evenly_spaced(len(rows), COMPARED_ROWS):
        row = rows[place]
        query = queries.setdefault(row[ANCHOR], f"q{len(queries)}")
        judged.setdefault(query, {})[documents.setdefault(row[POSITIVE], f"d{len(documents)}")] = 1
    corpus = {number: text for text, number in documents.items()}
    evaluator = RetrievalEvaluator(
        {number: text for text, number in queries.items()},
        corpus,
        judged,
        metrics=[COMPARED_MEASURE],
        latency_queries=0,
        show_progress_bar=True,
    )
    return {
        "bm25": evaluate_bm25(evaluator).metrics[COMPARED_MEASURE],
        "model": evaluator.evaluate(model).metrics[COMPARED_MEASURE],
    }
