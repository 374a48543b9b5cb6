"""Graded retrieval measures by their ir-measures names, over runs and judgements."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np

from lexforge.common.types import Qrels, Run
from lexforge.data.lines import check_grade
from lexforge.retrieval.base import check_k
from lexforge.storage.files import write_text
from lexforge.storage.manifest import MALFORMED

METRICS = ("nDCG@10", "RR@10", "R@100")
"""The measures of a retriever that are computed by default, as ir-measures names them."""

MULTILABEL_METRICS = (
    "probe_micro_f1",
    "probe_macro_f1",
    "centroid_micro_f1",
    "centroid_macro_f1",
    "label_map",
)
"""The measures of vectors of texts with several labels; `evaluate_multilabel` describes them."""

_NAME = re.compile(r"(?P<name>\w+)(\(rel=(?P<rel>[1-9]\d{0,3})\))?(@(?P<cutoff>[1-9]\d*))?")


@dataclass(frozen=True)
class RunScores:
    """The scores of a run.

    Args:
        mean: `{measure: mean over all judged queries}`.
        per_query: `{measure: {query id: value}}` for all judged queries, in the order of the judgements.
    """

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]


def evaluate_run(run: Run, qrels: Qrels, metrics: Sequence[str] = METRICS) -> dict[str, float]:
    """Compute the mean of each measure over all judged queries.

    Args:
        run: `{query id: {document id: score}}`; documents are ranked by score. Documents of equal score are
            ranked in the order of the dict, for every measure (trec_eval has an order of its own). A judged
            query that is not in the run counts as 0.
        qrels: `{query id: {document id: grade}}`; a grade of 1 or more is relevant. The gain is the grade.
            A grade below 0 says that a document is in the pool and not judged; infAP and Bpref tell that from
            a 0, and no other measure does. A query without a relevant document counts as 0.
        metrics: Names of measures in ir-measures, such as `nDCG@10`, `RR@10`, `R@100`, `AP@100`, `Success@5`,
            or its objects, such as `nDCG @ 10`; the result has their names.

    Returns:
        `{measure: mean}`.

    Raises:
        ValueError: If the run, the judgements or those of a query are no dictionaries, no query is judged, a
            grade is not an integer from -9999 to 9999, a measure is unknown, a score is a text or NaN, or a
            run with queries ranks none that is judged.
        TypeError: If the measures are no list.
    """
    return score_run(run, qrels, metrics).mean


def score_run(run: Run, qrels: Qrels, metrics: Sequence[str] = METRICS) -> RunScores:
    """Compute what `evaluate_run` computes, and return the value of every query beside the means.

    Args:
        run: `{query id: {document id: score}}`, as for `evaluate_run`.
        qrels: `{query id: {document id: grade}}`, as for `evaluate_run`.
        metrics: Names of measures in ir-measures, or its objects, as for `evaluate_run`.

    Returns:
        The means and the values of each query.

    Raises:
        ValueError: If `evaluate_run` would refuse the arguments.
        TypeError: If the measures are one text.
    """
    _check_dictionary("the run", "query -> document -> score", run)
    grades = check_qrels(qrels)
    if not grades:
        raise ValueError("the judgements must judge at least one query; received none")
    metrics = measure_names(metrics)
    names: dict[Any, list[str]] = {}  # measure -> all its names in `metrics`, such as RR@10 and MRR@10
    for name in metrics:
        names.setdefault(parse_metric(name), []).append(name)
    # trec_eval writes before the start of an array where a grade is below -1, as TREC Web's -2 for junk is.
    judged = {
        query: {document: max(grade, -1) for document, grade in documents.items()}
        for query, documents in grades.items()
    }
    if run and not run.keys() & qrels.keys():
        first, judged_first = next(iter(run)), next(iter(qrels))
        raise ValueError(
            f"the run ranks none of the judged queries: its first query is {first!r}, and the first that is "
            f"judged {judged_first!r}"
        )
    ranked = {query: _ranked(query, run[query]) for query in qrels if run.get(query)}
    # ir-measures leaves out a query that the run lacks; it stays at 0 here.
    per_query = {name: dict.fromkeys(qrels, 0.0) for name in metrics}
    for result in ir_measures.iter_calc(list(names), judged, ranked):
        for name in names[result.measure]:
            per_query[name][result.query_id] = float(result.value)
    mean = {name: math.fsum(values.values()) / len(values) for name, values in per_query.items()}
    return RunScores(mean, per_query)


def check_qrels(qrels: Qrels) -> Qrels:
    """Return the judgements with their grades as integers.

    Raises:
        ValueError: If they or those of a query are no dictionaries, an id is no text, or a grade is not an
            integer from -9999 to 9999.
    """
    _check_dictionary("the judgements", "query -> document -> grade", qrels)
    _check_ids("queries", qrels)
    for query, documents in qrels.items():
        _check_dictionary(f"the judgements of query {query!r}", "document -> grade", documents)
        _check_ids("documents", documents)
    return {
        query: {
            document: check_grade(f"query {query!r}, document {document!r}", grade)
            for document, grade in documents.items()
        }
        for query, documents in qrels.items()
    }


@dataclass(frozen=True)
class Comparison:
    """One measure of two runs over the same queries.

    Args:
        first: Mean of the first run.
        second: Mean of the second run.
        difference: The second mean minus the first.
        p_value: p-value of a two-sided paired t-test.
        interval: The 95 % confidence interval of the difference, by the same test.
    """

    first: float
    second: float
    difference: float
    p_value: float
    interval: tuple[float, float]


def compare_runs(
    first: RunScores, second: RunScores, *, groups: Mapping[str, str] | None = None
) -> dict[str, Comparison]:
    """Compare each measure of two runs by a two-sided paired t-test.

    Args:
        first: Scores of one run.
        second: Scores of the other run, for the same measures and queries.
        groups: `{query id: group}` where queries are no independent draws, such as ten questions about one
            article. The deviation is then that of the groups' sums, and there are as many degrees of freedom
            as groups, less one. None takes each query for a group of its own.

    Returns:
        `{measure: comparison}`; the p-value is 1 if no query differs.

    Raises:
        ValueError: If the measures or the queries differ, a query has no group, or there are fewer than two
            queries or groups.

    Source:
        Smucker et al., "A comparison of statistical significance tests for information retrieval evaluation",
        2007; groups: Liang and Zeger, "Longitudinal data analysis using generalized linear models", 1986.
    """
    if list(first.mean) != list(second.mean):
        raise ValueError(
            f"both runs must have the same measures; received {list(first.mean)} and {list(second.mean)}"
        )
    result = {}
    from scipy import stats  # here, because it takes half a second to load and few callers compare

    for name, values in first.per_query.items():
        others = second.per_query[name]
        if values.keys() != others.keys():
            raise ValueError(
                f"both runs must be scored on the same queries; received {len(values)} and {len(others)} "
                "queries that are not the same"
            )
        if len(values) < 2:
            raise ValueError(f"a paired test needs at least two queries; received {len(values)}")
        missing = [query for query in values if groups is not None and query not in groups]
        if missing:
            raise ValueError(f"every query needs a group; {len(missing)} have none, such as {missing[0]!r}")
        labels = [query if groups is None else groups[query] for query in values]
        numbers = np.unique(labels, return_inverse=True)[1]  # [N], of each query's group
        count = int(numbers.max()) + 1
        if count < 2:
            raise ValueError(f"a test by groups needs at least two of them; received {labels[0]!r} alone")
        differences = np.array([others[query] - value for query, value in values.items()])
        mean = float(differences.mean())
        sums = np.bincount(numbers, weights=differences - mean)
        error = math.sqrt(count / (count - 1) * float(sums @ sums)) / len(differences)
        # Where every query gains the same, the deviation is 0.
        t = abs(mean) / error if error else math.inf if mean else 0.0
        p_value = float(2 * stats.t.sf(t, count - 1))
        reach = float(stats.t.ppf(0.975, count - 1)) * error
        means = first.mean[name], second.mean[name]
        result[name] = Comparison(*means, means[1] - means[0], p_value, (mean - reach, mean + reach))
    return result


def write_scores(path: str | Path, scores: RunScores) -> None:
    """Write the value of every query as JSON, `{measure: {query id: value}}`, for `read_scores`.

    Args:
        path: The file to write; an existing file is replaced.
        scores: The scores of a run.
    """
    write_text(path, json.dumps(scores.per_query, ensure_ascii=False) + "\n")


def read_scores(path: str | Path) -> RunScores:
    """Read what `write_scores` wrote, such as the scores of an earlier evaluation to compare with.

    Args:
        path: The file.

    Returns:
        The scores; the means are computed from the values of the queries.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file holds anything else.
    """
    try:
        per_query = json.loads(Path(path).read_text(encoding="utf-8"))
        # Written again only because this refuses NaN, infinities and halves of surrogate pairs.
        json.dumps(per_query, ensure_ascii=False, allow_nan=False).encode("utf-8")
        mean = {name: math.fsum(values.values()) / len(values) for name, values in per_query.items()}
    except MALFORMED as error:
        raise ValueError(f"{path} does not hold scores by measure and query: {error}") from error
    return RunScores(mean, per_query)


def parse_metric(name: str) -> Any:
    """Return the measure of ir-measures for a name: `NAME`, `NAME@cutoff` or `NAME(rel=grade)@cutoff`.

    The grade is from 1 to 9999, as judgements are.

    Raises:
        ValueError: If there is no such measure, or it is neither one of pytrec_eval nor RR with a cutoff.
    """
    match = _NAME.fullmatch(name)
    if match is None or match["name"] not in ir_measures.measures.registry:
        raise ValueError(
            f"unknown measure {name!r}; allowed are the names of ir-measures, such as nDCG@10, RR@10, R@100 "
            "or P(rel=2)@5, with a grade from 1 to 9999 and a cutoff of at least 1"
        )
    measure = ir_measures.measures.registry[match["name"]]
    for key in ("rel", "cutoff"):
        if match[key] and key not in measure.SUPPORTED_PARAMS:
            raise ValueError(f"measure {name!r}: {match['name']} takes no {key}")
        if match[key]:
            measure = measure(**{key: int(match[key])})
    try:
        known = any(provider.supports(measure) for provider in (ir_measures.pytrec_eval, ir_measures.msmarco))
    except AssertionError as error:
        raise ValueError(f"measure {name!r}: {error}") from error
    if not known:
        raise ValueError(
            f"measure {name!r} is not computed here: only those of pytrec_eval are, and RR with a cutoff"
        )
    return measure


def check_metrics(metrics: Sequence[str], k: int) -> None:
    """Check the measures of a search before it begins.

    Args:
        metrics: Names of measures in ir-measures.
        k: The number of documents that are retrieved for each query.

    Raises:
        ValueError: If there is none, one is unknown or counts ranks beyond `k`, or `k` is below 1.
        TypeError: If the names are no list.
    """
    wanted = check_k(k)
    for name in measure_names(metrics):
        if parse_metric(name).params.get("cutoff", 0) > wanted:  # a measure without a cutoff counts all ranks
            raise ValueError(f"the cutoff of measure {name!r} must be at most k; received k = {wanted}")


def measures_below(metrics: Sequence[str], depth: int) -> list[str]:
    """Return the measures that look at documents behind a rank, all of them or up to a later cutoff.

    Args:
        metrics: Names of measures.
        depth: The rank, at least 0.

    Returns:
        Their names, in the order of `metrics`.

    Raises:
        ValueError: If a measure is unknown.
    """
    cutoffs = {name: parse_metric(name).params.get("cutoff") for name in metrics}
    return [name for name, cutoff in cutoffs.items() if cutoff is None or cutoff > depth]


def measure_names(metrics: Sequence[Any]) -> list[str]:
    """Return the names of measures, which may be objects of ir-measures, such as `ir_measures.nDCG @ 10`.

    Raises:
        ValueError: If there is none.
        TypeError: If they are no list.
    """
    if isinstance(metrics, str) or not isinstance(metrics, Iterable):
        what = "the text " if isinstance(metrics, str) else ""
        raise TypeError(f"metrics must be a list of names; received {what}{metrics!r}")
    if not (names := list(map(str, metrics))):
        raise ValueError("metrics must name at least one measure; received none")
    return names


def _check_dictionary(what: str, content: str, given: object) -> None:
    """Refuse another form of data, such as a table, which would hold none of the keys."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{what} must be a dictionary, {content}; received {type(given).__name__}")


def _check_ids(what: str, ids: Iterable[object]) -> None:
    """Refuse ids that are no texts, such as the numbers of a table; pytrec_eval names none of them."""
    for each in ids:
        if not isinstance(each, str):
            raise ValueError(f"the ids of {what} must be texts; received {each!r} ({type(each).__name__})")


def _ranked(query: str, documents: dict[str, float]) -> dict[str, float]:
    """Return the documents in the same order with distinct scores, because tools break ties differently.

    Raises:
        ValueError: If the documents are no dictionary, an id is no text, or a score is a text or NaN.
    """
    _check_dictionary(f"the run of query {query!r}", "document -> score", documents)
    _check_ids("documents", documents)
    for document, score in documents.items():
        if isinstance(score, str) or math.isnan(score):  # a file read by hand gives texts
            raise ValueError(
                f"the run must score document {document!r} of query {query!r} by a number; received {score!r}"
            )
    order = sorted(documents, key=lambda document: -documents[document])
    return {document: float(len(order) - rank) for rank, document in enumerate(order)}
