"""Graded retrieval measures by their ir-measures names, over runs and judgements."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
from scipy import stats

from lexforge.common.types import Qrels, Run
from lexforge.data.grades import check_grade

METRICS = ("nDCG@10", "RR@10", "R@100")
_NAME = re.compile(r"(?P<name>\w+)(\(rel=(?P<rel>\d+)\))?(@(?P<cutoff>[1-9]\d*))?")


@dataclass(frozen=True)
class RunScores:
    """The scores of a run.

    Args:
        mean: Measure name to its mean over all judged queries.
        per_query: Measure name to the value of each judged query, in the order of the judgements.
    """

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]


def evaluate_run(run: Run, qrels: Qrels, metrics: Sequence[str] = METRICS) -> dict[str, float]:
    """The mean of each measure over all judged queries.

    Args:
        run: `{query id: {document id: score}}`, ranked by score; documents of equal score in the dict's
            order, for every measure (trec_eval has its own order). A judged query that is missing counts 0.
        qrels: `{query id: {document id: grade}}`; a grade of 1 or more is relevant. Gains are linear in it.
        metrics: Names as ir-measures has them: `nDCG@10`, `RR@10`, `R@100`, `AP@100`, `Success@5`, ...

    Returns:
        The mean of each measure by its name.

    Raises:
        ValueError: No judged query, a grade that is no integer from -9999 to 9999, an unknown measure, or a
            score that is not a number.
    """
    return score_run(run, qrels, metrics).mean


def score_run(run: Run, qrels: Qrels, metrics: Sequence[str] = METRICS) -> RunScores:
    """As `evaluate_run`, with the value of every query beside the means."""
    if not qrels:
        raise ValueError("the judgements are empty: no query to evaluate")
    if not metrics:
        raise ValueError("no measure was given")
    measures = {parse_metric(name): name for name in metrics}
    judged = check_qrels(qrels)
    ranked = {query: _ranked(query, run[query]) for query in qrels if run.get(query)}
    per_query = {name: dict.fromkeys(qrels, 0.0) for name in metrics}
    for result in ir_measures.iter_calc(list(measures), judged, ranked):
        per_query[measures[result.measure]][result.query_id] = float(result.value)
    mean = {name: math.fsum(values.values()) / len(values) for name, values in per_query.items()}
    return RunScores(mean, per_query)


def check_qrels(qrels: Qrels) -> Qrels:
    """Judgements with their grades as integers; a grade that `check_grade` refuses is a ValueError."""
    return {
        query: {
            document: check_grade(f"query {query!r}, document {document!r}", grade)
            for document, grade in documents.items()
        }
        for query, documents in qrels.items()
    }


@dataclass(frozen=True)
class Comparison:
    """One measure of two runs over the same queries: the means, their difference, and a paired t-test."""

    first: float
    second: float
    difference: float
    p_value: float


def compare_runs(first: RunScores, second: RunScores) -> dict[str, Comparison]:
    """A two-sided paired t-test of each measure (Smucker et al., "A comparison of statistical significance
    tests for information retrieval evaluation", 2007).

    Args:
        first: Scores of one run.
        second: Scores of the other run: the same measures and queries.

    Returns:
        The comparison of each measure; the p-value is 1 where no query differs.

    Raises:
        ValueError: Other measures or queries, or fewer than two queries.
    """
    if list(first.mean) != list(second.mean):
        raise ValueError(f"the measures differ: {list(first.mean)} and {list(second.mean)}")
    result = {}
    for name, values in first.per_query.items():
        others = second.per_query[name]
        if values.keys() != others.keys():
            raise ValueError(f"the runs were scored on different queries: {len(values)} and {len(others)}")
        if len(values) < 2:
            raise ValueError("a paired test needs at least two queries")
        before = np.array(list(values.values()))
        after = np.array([others[query] for query in values])
        p_value = 1.0
        if (before != after).any():
            with warnings.catch_warnings():  # that all differences are equal: p is 0 then, or next to it
                warnings.filterwarnings("ignore", "Precision loss occurred", RuntimeWarning)
                p_value = float(stats.ttest_rel(after, before).pvalue)
        means = first.mean[name], second.mean[name]
        result[name] = Comparison(*means, means[1] - means[0], p_value)
    return result


def write_scores(path: str | Path, scores: RunScores) -> None:
    """Write the value of every query as JSON, `{measure: {query id: value}}`, for `read_scores`.

    Args:
        path: The file; what it held is replaced.
        scores: The scores of a run.
    """
    Path(path).write_text(json.dumps(scores.per_query, ensure_ascii=False) + "\n", encoding="utf-8")


def read_scores(path: str | Path) -> RunScores:
    """Read what `write_scores` wrote, such as the scores of an earlier evaluation to compare with.

    Args:
        path: The file.

    Returns:
        The scores; the means are taken anew.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file holds something else.
    """
    try:
        per_query = json.loads(Path(path).read_text(encoding="utf-8"))
        # refuses NaN, infinities and halves of surrogate pairs
        json.dumps(per_query, ensure_ascii=False, allow_nan=False).encode("utf-8")
        mean = {name: math.fsum(values.values()) / len(values) for name, values in per_query.items()}
    except (ValueError, AttributeError, TypeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{path} does not hold scores by measure and query: {error}") from error
    return RunScores(mean, per_query)


def parse_metric(name: str) -> Any:
    """The ir-measures measure of a name, `NAME`, `NAME@cutoff` or `NAME(rel=grade)@cutoff`.

    Raises:
        ValueError: No such measure, or none that pytrec_eval or ir-measures itself computes.
    """
    match = _NAME.fullmatch(name)
    if match is None or match["name"] not in ir_measures.measures.registry:
        raise ValueError(f"unknown measure {name!r}; names are those of ir-measures: nDCG@10, RR@10, R@100")
    measure = ir_measures.measures.registry[match["name"]]
    for key in ("rel", "cutoff"):
        if match[key] and key not in measure.SUPPORTED_PARAMS:
            raise ValueError(f"measure {name!r}: {match['name']} knows no {key}")
        if match[key]:
            measure = measure(**{key: int(match[key])})
    try:
        known = any(provider.supports(measure) for provider in (ir_measures.pytrec_eval, ir_measures.msmarco))
    except AssertionError as error:
        raise ValueError(f"measure {name!r}: {error}") from error
    if not known:
        raise ValueError(f"measure {name!r} is computed by neither pytrec_eval nor ir-measures itself")
    return measure


def cutoff(name: str) -> int | None:
    """The rank behind which a measure looks no further, or None where it has none."""
    return parse_metric(name).params.get("cutoff")


def _ranked(query: str, documents: dict[str, float]) -> dict[str, float]:
    """The documents with their rank from the end for a score, so that no provider meets a tie."""
    for document, score in documents.items():
        if math.isnan(score):
            raise ValueError(f"the run scores document {document!r} of query {query!r} as NaN")
    order = sorted(documents, key=lambda document: -documents[document])
    return {document: float(len(order) - rank) for rank, document in enumerate(order)}
