"""Training rows of judged pairs: their negatives, the rows that lack some, and a teacher's scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from datasets import Dataset

from lexforge.common.text_identity import text_identity
from lexforge.data import DataError, RetrievalData, validate_columns
from lexforge.negatives import NegativeRule, judged_run, rankings, rows_of_judgements
from lexforge.retrieval import BM25Index

DATA = RetrievalData(
    "toy",
    {"d1": "heap", "d2": "sort", "d3": "graph", "d4": "tree", "d5": ""},
    {"q1": "least element", "q2": "order a list"},
    {"train": {"q1": {"d1": 2, "d3": 1, "d2": 0, "d4": 0}, "q2": {"d2": 1, "d1": 0, "d4": -1}}},
)


def test_one_row_for_each_positive() -> None:
    """Graded positives count alike, judged negatives are none, and the order is that of the judgements."""
    rows = rows_of_judgements(DATA)
    assert [(row["anchor"], row["positive"]) for row in rows] == [
        ("least element", "heap"),
        ("least element", "graph"),
        ("order a list", "sort"),
    ]
    assert validate_columns(rows) == ("anchor", "positive")


def found(*documents: str) -> dict[str, float]:
    """A ranking of documents that all have the same score, from which negatives are drawn alike."""
    return dict.fromkeys(documents, 0.0)


def test_judged_negatives_become_columns() -> None:
    """Documents judged not relevant are the surest negatives there are."""
    run = judged_run(DATA)
    assert run == {"q1": found("d2", "d4"), "q2": found("d1", "d4")}
    rows = rows_of_judgements(DATA, [run], NegativeRule(per_row=2))
    assert validate_columns(rows) == ("anchor", "positive", "negative_1", "negative_2")
    assert [{row["negative_1"], row["negative_2"]} for row in rows] == [
        {"sort", "tree"},
        {"sort", "tree"},
        {"heap", "tree"},
    ]


def test_bm25_is_a_ranking_like_any_other() -> None:
    """The margin is that to the positive of the row, so one query may have rows with other negatives."""
    corpus = {"a": "red apple", "b": "red pear tree", "c": "red stones", "d": "blue sky"}
    data = RetrievalData("fruit", corpus, {"q": "red apple"}, {"train": {"q": {"a": 1, "b": 1}}})
    run = next(rankings(BM25Index.build(list(corpus.values()), list(corpus)).search, data.queries, 10))
    assert list(run["q"]) == ["a", "c", "b"]
    rule = NegativeRule(margin=0.05, choice="top", shortage="drop")
    assert run["q"]["c"] <= 0.95 * run["q"]["a"]
    assert [(row["positive"], row["negative_1"]) for row in rows_of_judgements(data, [run], rule)] == [
        (corpus["a"], corpus["c"])
    ]


def test_the_draw_of_negatives_follows_the_seed() -> None:
    """Two ranks must draw the same rows, and another seed must be able to draw others."""
    run = {"q1": found("d2", "d4", "d5"), "q2": found("d1", "d3", "d4")}
    draws = [rows_of_judgements(DATA, [run], NegativeRule(seed=seed)) for seed in (0, 0, 1, 2, 3)]
    assert draws[0] == draws[1]
    assert any(draw != draws[0] for draw in draws[2:])


def test_teacher_scores_follow_their_documents() -> None:
    """A score must stand at the place of its document, the positive's first."""
    scores = {"q1": {"d1": 0.9, "d3": 0.8, "d2": 0.1}, "q2": {"d2": 0.7, "d1": 0.2}}
    rows = rows_of_judgements(DATA, runs=[{"q1": found("d2"), "q2": found("d1")}], scores=scores)
    assert [row["label"] for row in rows] == [[0.9, 0.1], [0.8, 0.1], [0.7, 0.2]]
    assert validate_columns(rows) == ("anchor", "positive", "negative_1")
    with pytest.raises(DataError, match="query 'q2': there is no teacher score for the document 'd2'"):
        rows_of_judgements(DATA, scores={"q1": scores["q1"]})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"runs": []}, "none of the 2 queries has a negative to draw"),
        ({"runs": [{"q1": found("d5"), "q2": {}}]}, "none of the 2 queries has a negative to draw"),
        (
            {"runs": [{"q1": found("d2", "d4")}], "rule": NegativeRule(per_row=3)},
            "only 2 documents can be negatives of query 'q1'; received per_row=3",
        ),
        ({"runs": [{"q1": found("d9")}]}, "names document 'd9' for query 'q1', which toy lacks"),
    ],
)
def test_rows_that_cannot_be_made_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Each of these would train on something else than asked."""
    with pytest.raises(ValueError, match=message):
        rows_of_judgements(DATA, **arguments)


def test_a_query_without_a_positive_is_refused() -> None:
    """A set made in memory has passed no loader."""
    data = RetrievalData("toy", {"d1": "heap"}, {"q1": "least"}, {"train": {"q1": {"d1": 0}}})
    with pytest.raises(DataError, match="toy, split 'train', query 'q1': no positive"):
        rows_of_judgements(data)


def test_a_query_without_a_candidate_gets_random_negatives(caplog: pytest.LogCaptureFixture) -> None:
    """Any real set has such queries; their pairs are trained on all the same, and the log counts them."""
    run = {"q1": found("d2"), "q2": {}}
    draws = [rows_of_judgements(DATA, [run], NegativeRule(seed=seed)) for seed in range(20)]
    assert {row["negative_1"] for rows in draws for row in rows[:2]} == {"sort"}
    assert {rows[2]["negative_1"] for rows in draws} == {"heap", "graph", "tree"}, (
        "neither positive nor blank"
    )
    line = "toy, split 'train': 3 rows of 1 negative; 1 filled up at random, 0 dropped"
    assert [record.getMessage() for record in caplog.records] == [line] * 20


def test_rows_that_are_short_may_be_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Precomputed scores cannot know what is drawn at random."""
    scores = {"q1": {"d1": 0.9, "d3": 0.8, "d2": 0.1}, "q2": {"d2": 0.7}}
    run = {"q1": found("d2"), "q2": {}}
    rows = rows_of_judgements(DATA, runs=[run], rule=NegativeRule(shortage="drop"), scores=scores)
    assert [row["label"] for row in rows] == [[0.9, 0.1], [0.8, 0.1]]
    assert caplog.messages == ["toy, split 'train': 2 rows of 1 negative; 0 filled up at random, 1 dropped"]
    with pytest.raises(
        DataError,
        match=r"query 'q2': there is no teacher score .* at random to fill the row; shortage='drop' leaves",
    ):
        rows_of_judgements(DATA, runs=[run], scores=scores)


def test_rows_that_have_what_was_asked_are_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A line on every run would not be read on the one that matters."""
    rows_of_judgements(DATA)
    rows_of_judgements(DATA, runs=[{"q1": found("d2", "d4"), "q2": found("d1")}])
    assert caplog.messages == []


def test_each_row_names_all_documents_judged_relevant_to_its_query() -> None:
    """Another judged positive of the query, met in a batch, is no negative: the losses know it by this."""
    rows = rows_of_judgements(DATA)
    assert [row["relevant"] for row in rows] == [
        [text_identity("heap"), text_identity("graph")],
        [text_identity("heap"), text_identity("graph")],
        [text_identity("sort")],
    ]
    assert validate_columns(Dataset.from_list(rows)) == ("anchor", "positive")


def test_one_relevant_document_per_query_needs_no_column() -> None:
    """Then the positive says it all, and the rows fit every collator of sentence-transformers."""
    data = replace(DATA, qrels={"train": {"q1": {"d1": 1}, "q2": {"d3": 1}}})
    assert all("relevant" not in row for row in rows_of_judgements(data))


def test_queries_of_the_same_text_share_their_judged_documents() -> None:
    """Their anchors are one text, so what answers the one answers the other; equal documents count once."""
    data = replace(
        DATA,
        corpus={**DATA.corpus, "d1 again": DATA.corpus["d1"]},
        queries={**DATA.queries, "q2": DATA.queries["q1"]},
        qrels={"train": {"q1": {"d1": 1}, "q2": {"d3": 1, "d1 again": 1}}},
    )
    expected = [text_identity(data.corpus["d1"]), text_identity(data.corpus["d3"])]
    assert [row["relevant"] for row in rows_of_judgements(data)] == [expected] * 3
