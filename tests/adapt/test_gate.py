"""The gate: paired queries decide, judged ones before pseudo-queries."""

from __future__ import annotations

import pytest

from lexforge.adapt import PseudoQuery, judge, judgements, measure
from lexforge.common.types import Passage
from lexforge.evaluation import RetrievalEvaluator
from lexforge.evaluation.evaluator import RetrievalResult

CORPUS = {"a": "sort the list", "b": "open the file", "c": "hash of a key", "d": "node of a tree"}
QUERIES = {"1": "list", "2": "file", "3": "tree"}


def result(*values: float) -> RetrievalResult:
    scores = {str(number): value for number, value in enumerate(values)}
    return RetrievalResult({"nDCG@10": sum(values) / len(values)}, {}, {"nDCG@10": scores}, {}, {})


def test_the_mean_over_paired_queries_decides() -> None:
    """Equal is not better: then nothing was gained, and the start is kept."""
    better = judge({"held_out": result(0.1, 0.2, 0.3)}, {"held_out": result(0.3, 0.2, 0.3)})
    assert (better.better, better.judged, better.queries) == (True, False, 3)
    assert str(better).startswith(
        "nDCG@10 of 3 held-out pseudo-queries: 0.2000 -> 0.2667 (+0.0667, 95 % interval"
    )
    assert str(better).endswith("is better than the start, but within what chance makes of so many queries")
    clear = judge({"held_out": result(0.1, 0.2, 0.3)}, {"held_out": result(0.3, 0.4, 0.6)})
    assert str(clear).endswith("so the adapted model is better than the start")
    same = judge({"held_out": result(0.1, 0.3)}, {"held_out": result(0.3, 0.1)}, "BM25")
    assert not same.better
    assert str(same).endswith("so the adapted model is not better than BM25")


def test_at_the_ceiling_the_verdict_says_that_it_knows_nothing() -> None:
    """`not better` of 1.0000 -> 1.0000 reads as a failed adaptation, and the queries were too easy."""
    for name, rest in (("held_out", "; --judged DATA lets judged queries decide"), ("judged", "")):
        verdict = judge({name: result(1.0, 1.0, 1.0)}, {name: result(1.0, 1.0, 1.0)})
        assert not verdict.better
        assert str(verdict).endswith(
            "1.0000 -> 1.0000: both find what answers all 3 of them first, so these queries cannot tell the "
            f"two apart{rest}"
        )
    assert "cannot tell" not in str(judge({"held_out": result(1.0, 0.9)}, {"held_out": result(1.0, 0.9)}))


def test_judged_queries_decide_where_there_are_any() -> None:
    """They are what the gate stands for."""
    before = {"held_out": result(0.1, 0.2), "judged": result(0.5, 0.6)}
    verdict = judge(before, {"held_out": result(0.9, 0.9), "judged": result(0.4, 0.6)})
    assert (verdict.better, verdict.judged) == (False, True)


def test_a_title_asks_for_every_passage_of_its_document() -> None:
    """Each part of a document has its title, so no one of them is the answer; a sentence has one passage."""
    passages = {
        "a#1": Passage("Floods", "It rained.", "a"),
        "b": Passage("Fires", "It burned.", "b"),
        "a#2": Passage("Floods", "The river rose.", "a"),
    }
    held = {
        "1": PseudoQuery("Floods", "title", "a#2"),
        "2": PseudoQuery("The river rose.", "sentence", "a#2"),
        "3": PseudoQuery("burned fires", "keywords", "b"),
    }
    assert judgements(held, passages) == {"1": {"a#1": 1, "a#2": 1}, "2": {"a#2": 1}, "3": {"b": 1}}


def test_a_retriever_and_bm25_are_measured_alike(tiny_splade) -> None:
    """A start that is no retriever yet is held against BM25."""
    held = RetrievalEvaluator(QUERIES, CORPUS, {"1": {"a": 1}, "2": {"b": 1}, "3": {"d": 1}}, k=100)
    judged = RetrievalEvaluator(QUERIES, {**CORPUS, "e": "list"}, {"1": {"e": 1}, "2": {"b": 1}})
    evaluators = {"held_out": held, "judged": judged}
    found = measure(None, evaluators)
    assert found["held_out"].metrics["nDCG@10"] == pytest.approx(1.0)
    assert found["judged"].metrics["nDCG@10"] == pytest.approx(1.0)  # found in the documents of their own
    own = measure(tiny_splade, evaluators)
    assert own["judged"].metrics == pytest.approx(judged.evaluate(tiny_splade).metrics)
