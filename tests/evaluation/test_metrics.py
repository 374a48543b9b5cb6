"""Measures by hand and by ir-measures' own functions; ties, missing queries, paired tests."""

from __future__ import annotations

import math
import time
from pathlib import Path

import ir_measures
import numpy as np
import pandas
import pytest
from scipy import stats
from warm_processes import WarmProcesses

from lexforge.evaluation import RunScores, compare_runs, evaluate_run, read_scores, score_run
from lexforge.evaluation.metrics import check_metrics
from lexforge.retrieval import Hits

QRELS = {"q1": {"a": 2, "b": 1, "c": 0}, "q2": {"a": 1}}


def test_graded_ndcg_by_hand() -> None:
    """Gains are linear in the grade: (1 / log2(2) + 2 / log2(4)) / (2 / log2(2) + 1 / log2(3))."""
    run = {"q1": {"b": 9.0, "c": 8.0, "a": 7.0}, "q2": {"a": 1.0}}
    scores = score_run(run, QRELS, ["nDCG@10", "RR@10", "RR(rel=2)@10", "R@1", "AP", "Success@1"])
    expected = (1 + 2 / 2) / (2 + 1 / math.log2(3))
    assert scores.per_query["nDCG@10"] == pytest.approx({"q1": expected, "q2": 1}, rel=1e-12)
    assert scores.mean["nDCG@10"] == pytest.approx((expected + 1) / 2, rel=1e-12)
    assert scores.per_query["RR(rel=2)@10"] == pytest.approx({"q1": 1 / 3, "q2": 0})
    assert scores.per_query["R@1"] == {"q1": 0.5, "q2": 1}
    assert scores.per_query["AP"] == pytest.approx({"q1": (1 + 2 / 3) / 2, "q2": 1})
    assert scores.mean["RR@10"] == 1
    assert scores.mean["Success@1"] == 1


def test_two_names_of_a_measure_are_both_reported() -> None:
    """ir-measures has several names for one measure; the first of them was reported as 0."""
    names = ["RR@10", "MRR@10", "R@1", "Recall@1", "AP", "AP(rel=1)"]
    means = evaluate_run({"q1": {"c": 2.0, "a": 1.0}, "q2": {"a": 1.0}}, QRELS, names)
    assert means == {
        "RR@10": 0.75,
        "MRR@10": 0.75,
        "R@1": 0.5,
        "Recall@1": 0.5,
        "AP": 0.625,
        "AP(rel=1)": 0.625,
    }


def test_objects_of_ir_measures_count_by_their_names() -> None:
    """The error was that of a regular expression which expected a text."""
    run = {"q1": {"c": 2.0, "a": 1.0}, "q2": {"a": 1.0}}
    names = ["nDCG@10", "P(rel=2)@5", "AP"]
    objects = [ir_measures.nDCG @ 10, ir_measures.P(rel=2) @ 5, ir_measures.AP]
    assert (
        evaluate_run(run, QRELS, objects)
        == evaluate_run(run, QRELS, iter(names))
        == evaluate_run(run, QRELS, names)
    )
    check_metrics(objects, 10)
    with pytest.raises(ValueError, match="cutoff of measure 'nDCG@10' must be at most k"):
        check_metrics(objects, 9)
    for wrong in ("nDCG@10", ir_measures.nDCG @ 10):
        with pytest.raises(TypeError, match=r"metrics must be a list of names; received .*nDCG@10"):
            evaluate_run(run, QRELS, wrong)


def test_a_missing_query_counts_zero() -> None:
    """A system that answers only easy queries must not gain by it; unjudged queries do not matter."""
    assert evaluate_run({"q2": {"a": 1.0}, "other": {"a": 1.0}}, QRELS, ["nDCG@10", "RR@10", "R@100"]) == {
        "nDCG@10": 0.5,
        "RR@10": 0.5,
        "R@100": 0.5,
    }
    assert evaluate_run({}, QRELS) == {"nDCG@10": 0, "RR@10": 0, "R@100": 0}
    assert evaluate_run({"q1": {}, "q2": {"b": 1.0}}, QRELS) == {"nDCG@10": 0, "RR@10": 0, "R@100": 0}


@pytest.mark.parametrize("order", [["z", "a"], ["a", "z"]])
def test_ties_keep_the_order_of_the_run(order: list[str]) -> None:
    """trec_eval prefers the later id, ir-measures' RR the earlier: one order must rule all measures."""
    run = {"q": dict.fromkeys(order, 1.0)}
    expected = 1 if order[0] == "a" else 0
    means = evaluate_run(run, {"q": {"a": 1}}, ["nDCG@1", "RR@1", "R@1", "AP@1"])
    assert set(means.values()) == {expected}


def test_agrees_with_ir_measures_on_random_runs() -> None:
    """Without ties the numbers must be those that anyone gets from the run file."""
    import ir_measures
    from ir_measures import AP, RR, R, nDCG

    rng = np.random.default_rng(0)
    documents = [f"d{i}" for i in range(50)]
    qrels = {
        f"q{i}": {name: int(rng.integers(0, 4)) for name in rng.choice(documents, 8, False)}
        for i in range(30)
    }
    run = {
        query: dict(zip(rng.choice(documents, 20, False).tolist(), rng.permutation(20) / 7, strict=True))
        for query in list(qrels)[:27]
    }
    ours = evaluate_run(run, qrels, ["nDCG@10", "RR@10", "R@15", "AP@20"])
    theirs = ir_measures.calc_aggregate([nDCG @ 10, RR @ 10, R @ 15, AP @ 20], qrels, run)
    for measure, value in theirs.items():
        assert ours[str(measure)] == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("ndcg10", "unknown measure 'ndcg10'"),
        ("nDCG@0", "unknown measure 'nDCG@0'"),
        ("R", "measure 'R'.*cutoff"),
        ("NumQ@5", "NumQ takes no cutoff"),
        ("nDCG(rel=2)@5", "nDCG takes no rel"),
        ("AP(rel=0)", r"'AP\(rel=0\)'; .* a grade from 1 to 9999"),
        ("P(rel=99999999999)@5", "a grade from 1 to 9999"),
        ("ERR@20", "'ERR@20' is not computed here: only those of pytrec_eval are, and RR with a cutoff"),
    ],
)
def test_unknown_measures_are_refused(metric: str, message: str) -> None:
    """A name must fail before any encoding.

    pytrec_eval ends the process on a cutoff of 0, and fails on a grade of 0 or beyond 32 bits.
    """
    with pytest.raises(ValueError, match=message):
        evaluate_run({"q1": {"a": 1.0}}, QRELS, [metric])


@pytest.mark.parametrize(
    ("run", "qrels", "metrics", "message"),
    [
        ({}, {}, ["AP"], "must judge at least one query"),
        ({}, QRELS, [], "at least one measure; received none"),
        ({"q1": {"a": math.nan}}, QRELS, ["AP"], "document 'a' of query 'q1' by a number; received nan"),
        ({"q1": {"a": "0.5"}}, QRELS, ["AP"], "document 'a' of query 'q1' by a number; received '0.5'"),
    ],
)
def test_empty_and_nan_input(run, qrels, metrics, message: str) -> None:
    """A mean over nothing and an order by NaN are no numbers."""
    with pytest.raises(ValueError, match=message):
        evaluate_run(run, qrels, metrics)


@pytest.mark.parametrize(
    ("run", "qrels", "message"),
    [
        (pandas.DataFrame({"q1": ["a"]}), QRELS, "the run must be a dictionary, .*; received DataFrame"),
        (Hits([["a"]], [np.ones(1, np.float32)]), QRELS, "the run must be a dictionary, .*; received Hits"),
        (
            {"q1": ["a"]},
            QRELS,
            "the run of query 'q1' must be a dictionary, document -> score; received list",
        ),
        ({}, {"q1": {"a"}}, "judgements of query 'q1' must be a dictionary, document -> grade; received set"),
        ({}, pandas.DataFrame({"q1": [1]}), "the judgements must be a dictionary, .*; received DataFrame"),
        (
            {1: {"a": 1.0}, 2: {}},
            QRELS,
            "ranks none .*: its first query is 1, and the first that is judged 'q1'",
        ),
        ({"q1": {2: 1.0}}, QRELS, r"the ids of documents must be texts; received 2 \(int\)"),
        ({"q1": {"a": 1.0}}, {"q1": {2: 1}}, r"the ids of documents must be texts; received 2 \(int\)"),
        ({1: {"a": 1.0}}, {1: {"a": 1}}, r"the ids of queries must be texts; received 1 \(int\)"),
    ],
)
def test_other_forms_of_a_run_and_of_judgements_are_refused(run, qrels, message: str) -> None:
    """A table in the place of the run would be a run without any query, and every measure 0."""
    with pytest.raises(ValueError, match=message):
        evaluate_run(run, qrels)


@pytest.mark.parametrize("grade", [10_000, -10_000, 2**31 - 1, 2**40, 1.5, float("nan"), "1", None])
def test_a_grade_that_trec_eval_cannot_hold_is_refused(grade) -> None:
    """It answers with 0, with gigabytes or with the death of the process."""
    with pytest.raises(ValueError, match=r"query 'q', document 'b': the score must be .*-9999 to 9999"):
        evaluate_run({"q": {"a": 1.0}}, {"q": {"a": 1, "b": grade}})


def test_the_largest_grades_are_measured_right_and_soon() -> None:
    """The limit is where trec_eval is exact and as fast as at small grades; numpy's integers are integers."""
    run = {f"q{i}": {"a": 2.0, "b": 1.0, "c": 0.5} for i in range(1000)}
    qrels = {query: {"a": 1, "b": np.int64(9999), "c": -9999.0} for query in run}
    expected = (1 + 9999 / math.log2(3)) / (9999 + 1 / math.log2(3))
    started = time.perf_counter()
    scores = evaluate_run(run, qrels)
    assert time.perf_counter() - started < 5  # .1 s; a grade of 9 digits takes minutes
    assert scores == pytest.approx({"nDCG@10": expected, "RR@10": 1, "R@100": 1}, rel=1e-12)


def test_grades_below_zero_are_no_judgements(warm: WarmProcesses) -> None:
    """TREC Web judges junk as -2; trec_eval writes beside its counters then, and the process dies or lies.

    By hand: Bpref skips what is not judged, and infAP takes it for relevant by half: 1/2 + 1/2 * 1/2.
    """
    code = """
from math import isclose
from lexforge.evaluation import score_run
run = {"q0": {"d0": 3.0, "d1": 2.0}, "q1": {"d1": 1.0}}
names = ["nDCG@10", "RR@10", "R@100", "AP", "P@1", "Rprec", "SetF"]
expected = score_run(run, {"q0": {"d0": 0, "d1": 1}, "q1": {"d1": 1}}, names)
for grade in (-1, -2, -9999):
    for _ in range(300):
        assert score_run(run, {"q0": {"d0": grade, "d1": 1}, "q1": {"d1": 1}}, names) == expected
    found = score_run(run, {"q0": {"d0": grade, "d1": 1}, "q1": {"d1": 1}}, ["Bpref", "infAP"]).per_query
    assert found["Bpref"]["q0"] == 1
    assert isclose(found["infAP"]["q0"], 0.75, abs_tol=1e-4)  # trec_eval adds .00001 against a division by 0
    none = score_run(run, {"q0": {"d0": grade}, "q1": {"d1": grade}}, [*names, "Bpref", "infAP"])
    assert set(none.mean.values()) == {0}
"""
    assert warm.run("-c", [code]) == [0], warm.log.read_text()


def test_cutoffs_are_within_the_documents_that_are_retrieved() -> None:
    """A measure beyond them would be too low; one without a cutoff counts what there is."""
    check_metrics(["nDCG@10", "RR(rel=2)@7", "AP"], 10)
    with pytest.raises(ValueError, match=r"'RR\(rel=2\)@7' must be at most k; received k = 6"):
        check_metrics(["AP", "RR(rel=2)@7"], 6)


def test_the_paired_test_by_its_formula() -> None:
    """t = mean(d) / (sd(d) / sqrt(n)) over the differences, in whatever order the queries stand."""
    first = RunScores({"AP": 0.3}, {"AP": {"a": 0.1, "b": 0.2, "c": 0.6}})
    second = RunScores({"AP": 0.5}, {"AP": {"c": 0.7, "a": 0.4, "b": 0.4}})
    difference = np.array([0.3, 0.2, 0.1])
    t = difference.mean() / (difference.std(ddof=1) / math.sqrt(3))
    result = compare_runs(first, second)["AP"]
    assert result.p_value == pytest.approx(2 * stats.t.sf(t, 2), rel=1e-9)
    assert (result.first, result.second) == (0.3, 0.5)
    assert result.difference == pytest.approx(0.2)
    reach = stats.t.ppf(0.975, 2) * difference.std(ddof=1) / math.sqrt(3)
    assert result.interval == pytest.approx((0.2 - reach, 0.2 + reach), rel=1e-9)
    assert compare_runs(first, first)["AP"].p_value == 1


def random_runs(queries: int, copies: int = 1) -> tuple[RunScores, RunScores]:
    """Two runs of which the second is a little better; each query may stand there several times."""
    generator = np.random.default_rng(3)
    before, gain = generator.random(queries), generator.normal(0.05, 0.2, queries)
    runs = [
        {f"{query}-{copy}": float(values[query]) for query in range(queries) for copy in range(copies)}
        for values in (before, before + gain)
    ]
    first, second = (RunScores({"AP": float(np.mean(list(run.values())))}, {"AP": run}) for run in runs)
    return first, second


def test_copies_of_a_query_make_a_difference_no_surer() -> None:
    """Ten questions about one article that all gain alike are one observation, not ten."""
    once = compare_runs(*random_runs(20))["AP"]
    first, second = random_runs(20, copies=10)
    groups = {query: query.split("-")[0] for query in first.per_query["AP"]}
    grouped = compare_runs(first, second, groups=groups)["AP"]
    assert grouped.p_value == pytest.approx(once.p_value, rel=1e-9)
    assert grouped.interval == pytest.approx(once.interval, rel=1e-9)
    assert compare_runs(first, second)["AP"].p_value < once.p_value / 100
    with pytest.raises(ValueError, match="every query needs a group; 200 have none, such as '0-0'"):
        compare_runs(first, second, groups={})
    with pytest.raises(ValueError, match="at least two of them; received 'one' alone"):
        compare_runs(first, second, groups=dict.fromkeys(groups, "one"))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (RunScores({"RR": 1}, {"RR": {"a": 1, "b": 1}}), "must have the same measures; received"),
        (RunScores({"AP": 1}, {"AP": {"a": 1, "c": 1}}), "on the same queries; received 2 and 2"),
    ],
)
def test_runs_that_do_not_pair_are_refused(second: RunScores, message: str) -> None:
    """A paired test over other queries would pair noise."""
    with pytest.raises(ValueError, match=message):
        compare_runs(RunScores({"AP": 1}, {"AP": {"a": 1, "b": 1}}), second)
    one = RunScores({"AP": 1}, {"AP": {"a": 1}})
    with pytest.raises(ValueError, match="at least two queries"):
        compare_runs(one, one)


@pytest.mark.parametrize("gain", [0.5, 0.1])
def test_the_same_gain_on_every_query_is_certain(gain: float) -> None:
    """The deviation is 0, so t is infinite: a p-value next to 0 and no warning."""
    before = {"a": 0.1, "b": 0.2, "c": 0.3}
    after = {query: value + gain for query, value in before.items()}
    result = compare_runs(RunScores({"AP": 0.2}, {"AP": before}), RunScores({"AP": 0.3}, {"AP": after}))
    assert result["AP"].p_value < 1e-9


@pytest.mark.parametrize("content", ["[]", "{", '{"AP": {}}', '{"AP": 3}', '{"AP": {"a": "b"}}'])
def test_a_file_without_scores_is_refused(content: str, tmp_path: Path) -> None:
    """With its name."""
    (tmp_path / "scores.json").write_text(content)
    with pytest.raises(ValueError, match=r"scores\.json does not hold scores"):
        read_scores(tmp_path / "scores.json")
