"""BM25 and a model are compared on training queries, over the documents that answer them."""

from __future__ import annotations

from itertools import pairwise

from datasets import Dataset
from sentence_transformers import SparseEncoder

from lexforge.evaluation import RetrievalEvaluator, compare_with_bm25, evaluate_bm25
from lexforge.evaluation.training_queries import ROWS as LARGEST

WORDS = "list array search index query document vector sparse token model train file graph tree".split()
ROWS = [{"anchor": word, "positive": f"the {word} of a {other}"} for word, other in pairwise(WORDS)]


def test_both_are_measured_on_the_same_task(tiny_splade: SparseEncoder) -> None:
    """The numbers are those of an evaluation of the rows, with all positives of a query judged relevant."""
    rows = [*ROWS, {"anchor": WORDS[0], "positive": "another list"}]
    texts = [row["positive"] for row in rows]
    corpus = {str(place): text for place, text in enumerate(texts)}
    queries = {word: word for word in WORDS[:-1]}
    judged = {word: {str(place): 1} for place, word in enumerate(WORDS[:-1])}
    judged[WORDS[0]][str(len(rows) - 1)] = 1
    evaluator = RetrievalEvaluator(queries, corpus, judged, latency_queries=0)
    found = compare_with_bm25(tiny_splade, Dataset.from_list(rows))
    assert found["model"] == evaluator.evaluate(tiny_splade).metrics["nDCG@10"]
    assert found["bm25"] == evaluate_bm25(evaluator).metrics["nDCG@10"]
    assert found["bm25"] > found["model"], "random weights know nothing"


def test_a_sample_is_spread_over_the_rows(tiny_splade: SparseEncoder) -> None:
    """The first rows of a set often come from one source."""
    found = [{"anchor": word, "positive": f"the {word}"} for word in WORDS[:6]]
    lost = [{"anchor": f"x{n}", "positive": f"y{n}"} for n in range(6)]
    rows = [row for row in [*found, *lost] for _ in range(LARGEST // 6)]
    assert compare_with_bm25(tiny_splade, rows)["bm25"] == 0.5
