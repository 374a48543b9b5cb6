"""The gate of an adaptation: the adapted model replaces the start only where it ranks better.

Without judged queries, held-out pseudo-queries stand for them, and each asks for the passage or the document
that it was taken from. That a model finds these by titles, sentences and keywords again is needed and does
not suffice: docs/adapt.md says what such a verdict can know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sentence_transformers.base.model import BaseModel

from lexforge.adapt.queries import PseudoQuery
from lexforge.common.types import Passage, Qrels
from lexforge.evaluation import (
    Comparison,
    RetrievalEvaluator,
    RetrievalResult,
    compare_runs,
    evaluate_bm25,
)

MEASURE = "nDCG@10"
_PERFECT = 1 - 1e-9  # means of 1.0 in float64


@dataclass(frozen=True)
class Verdict:
    """Whether the adapted model is better than the start, or than BM25 where the start is no retriever.

    Args:
        better: Whether it is.
        judged: Whether judged queries decided, or held-out pseudo-queries.
        queries: Number of the queries that decided.
        comparison: nDCG@10 of the start and of the adapted model on them.
        against: What the adapted model is compared with: "the start" or "BM25".
    """

    better: bool
    judged: bool
    queries: int
    comparison: Comparison
    against: str

    def __str__(self) -> str:
        """Say in one sentence what was found."""
        c = self.comparison
        what = "judged queries" if self.judged else "held-out pseudo-queries"
        if min(c.first, c.second) > _PERFECT:
            other = "" if self.judged else "; --judged DATA lets judged queries decide"
            return (
                f"{MEASURE} of {self.queries} {what}: {c.first:.4f} -> {c.second:.4f}: both find what "
                f"answers all {self.queries} of them first, so these queries cannot tell the two apart{other}"
            )
        verdict = f"{'better' if self.better else 'not better'} than {self.against}"
        if self.better and c.interval[0] <= 0:
            verdict += ", but within what chance makes of so many queries"
        return (
            f"{MEASURE} of {self.queries} {what}: {c.first:.4f} -> {c.second:.4f} ({c.difference:+.4f}, 95 % "
            f"interval {c.interval[0]:+.4f} to {c.interval[1]:+.4f}), so the adapted model is {verdict}"
        )


def judgements(held: Mapping[str, PseudoQuery], passages: Mapping[str, Passage]) -> Qrels:
    """Judge the passages that held-out pseudo-queries were taken from.

    Args:
        held: Query id -> pseudo-query.
        passages: Passage id -> passage, of all that are searched.

    Returns:
        Query id -> passage id -> 1. A title asks for its document, so every passage of this is relevant; any
        other query asks for its own passage.
    """
    parts: dict[str, list[str]] = {}
    for key, passage in passages.items():
        parts.setdefault(passage.document, []).append(key)
    found: Qrels = {}
    for name, query in held.items():
        whole = query.origin == "title"
        relevant = parts[passages[query.passage].document] if whole else [query.passage]
        found[name] = dict.fromkeys(relevant, 1)
    return found


def measure(
    model: BaseModel | None, evaluators: Mapping[str, RetrievalEvaluator]
) -> dict[str, RetrievalResult]:
    """Measure a retriever on what the gate looks at.

    Args:
        model: The retriever; None is BM25.
        evaluators: "held_out": the held-out pseudo-queries over the passages, and "judged", where there are
            such queries: the judged ones over their own documents.

    Returns:
        The names of the evaluators -> what was measured.
    """
    return {
        name: evaluate_bm25(evaluator) if model is None else evaluator.evaluate(model)
        for name, evaluator in evaluators.items()
    }


def judge(
    before: Mapping[str, RetrievalResult],
    after: Mapping[str, RetrievalResult],
    against: str = "the start",
) -> Verdict:
    """Decide by the mean over paired queries whether an adapted model is better than its start.

    Args:
        before: What `measure` found of the start.
        after: What it found of the adapted model.
        against: The name of what was measured before, for people.

    Returns:
        The verdict: better where the mean difference is above 0. Judged queries decide where there are any.
    """
    name = "judged" if "judged" in before else "held_out"
    comparison = compare_runs(before[name].scores, after[name].scores)[MEASURE]
    queries = len(before[name].scores.per_query[MEASURE])
    return Verdict(comparison.difference > 0, name == "judged", queries, comparison, against)
