"""The evaluation of a retrieval recipe."""

from __future__ import annotations

from itertools import pairwise

import pytest
from datasets import Dataset
from sentence_transformers import SparseEncoder

from lexforge.data import RetrievalData
from lexforge.evaluation import (
    RetrievalEvaluator,
    compare_with_bm25,
    evaluate_bm25,
    evaluate_within,
    evaluator_of_split,
    evaluators_by_split,
)
from lexforge.evaluation.retrieval_task import COMPARED_ROWS

WORDS = "list array search index query document vector sparse token model train file graph tree".split()
ROWS = [{"anchor": word, "positive": f"the {word} of a {other}"} for word, other in pairwise(WORDS)]
CORPUS = {"d0": "ship and wave", "d1": "wheat and barn", "d2": "star and comet"}


def data(corpus: dict[str, str] = CORPUS) -> RetrievalData:
    """Two test queries: the words of one stand in its document, those of the other in another document."""
    queries = {"q0": "ship", "q1": "barn", "q2": "comet"}
    qrels = {"train": {"q0": {"d0": 1}}, "test": {"q1": {"d1": 1}, "q2": {"d0": 1}}}
    return RetrievalData("tiny", corpus, queries, qrels)


def test_the_evaluator_searches_the_queries_of_the_split_in_the_whole_corpus() -> None:
    """A query of another split would be measured on what the model was trained on."""
    evaluator = evaluator_of_split(data(), "test")
    assert dict(zip(evaluator.query_ids, evaluator.query_texts, strict=True)) == {"q1": "barn", "q2": "comet"}
    assert evaluator.document_ids == list(CORPUS)


def test_the_measures_of_every_split_but_test_carry_its_name() -> None:
    """A run measures dev and test; without the prefix the numbers of one would replace those of the other."""
    evaluators = evaluators_by_split(data(), ["test", "train"])
    assert {split: evaluator.name for split, evaluator in evaluators.items()} == {
        "test": "",
        "train": "train",
    }


def test_bm25_is_measured_on_the_same_queries() -> None:
    """By hand: q1 finds its document first, and q2 never finds its own."""
    result = evaluate_bm25(evaluator_of_split(data(), "test"))
    assert result.metrics == {"nDCG@10": 0.5, "RR@10": 0.5, "R@100": 0.5}
    assert result.per_query["nDCG@10"] == {"q1": 1.0, "q2": 0.0}
    assert {query: list(found) for query, found in result.run.items()} == {"q1": ["d1"], "q2": ["d2"]}


def test_what_would_fail_after_training_fails_at_once() -> None:
    """The run file is written last, and a missing split would show only there, too."""
    with pytest.raises(ValueError, match=r"tiny has no split 'dev'; its splits are \['train', 'test'\]"):
        evaluator_of_split(data(), "dev")
    with pytest.raises(ValueError, match=r"document id 'd 3'"):
        evaluator_of_split(data(CORPUS | {"d 3": "text"}), "test")


def test_a_slow_model_searches_a_sample(tiny_splade: SparseEncoder) -> None:
    """The judged documents stay, so that every query can find what answers it."""
    many = data(CORPUS | {f"other{place}": f"text {place}" for place in range(200)})
    evaluator = evaluator_of_split(many, "test")
    result, searched = evaluate_within(3600.0, tiny_splade, evaluator, many)
    assert searched == len(many.corpus)
    assert result.metrics == evaluator.evaluate(tiny_splade).metrics
    result, searched = evaluate_within(0.0, tiny_splade, evaluator, many)
    assert searched == 2
    assert {document for found in result.run.values() for document in found} == {"d0", "d1"}


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
    rows = [row for row in [*found, *lost] for _ in range(COMPARED_ROWS // 6)]
    assert compare_with_bm25(tiny_splade, rows)["bm25"] == 0.5
