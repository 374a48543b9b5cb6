"""Training rows and the column contract."""

from __future__ import annotations

from typing import Any

import pytest

from lexforge.data import DataError, RetrievalData, judged_negatives, training_rows, validate_columns

DATA = RetrievalData(
    "toy",
    {"d1": "heap", "d2": "sort", "d3": "graph", "d4": "tree", "d5": ""},
    {"q1": "least element", "q2": "order a list"},
    {"train": {"q1": {"d1": 2, "d3": 1, "d2": 0, "d4": 0}, "q2": {"d2": 1, "d1": 0, "d4": -1}}},
)


def test_one_row_for_each_positive() -> None:
    """Graded positives count alike, judged negatives are none, and the order is that of the judgements."""
    rows = training_rows(DATA)
    assert rows == [
        {"anchor": "least element", "positive": "heap"},
        {"anchor": "least element", "positive": "graph"},
        {"anchor": "order a list", "positive": "sort"},
    ]
    assert validate_columns(rows) == ("anchor", "positive")


def test_judged_negatives_become_columns() -> None:
    """Documents judged not relevant are the surest negatives there are."""
    negatives = judged_negatives(DATA)
    assert negatives == {"q1": ["d2", "d4"], "q2": ["d1", "d4"]}
    rows = training_rows(DATA, negatives=negatives, negatives_per_row=2)
    assert validate_columns(rows) == ("anchor", "positive", "negative_1", "negative_2")
    assert [{row["negative_1"], row["negative_2"]} for row in rows] == [
        {"sort", "tree"},
        {"sort", "tree"},
        {"heap", "tree"},
    ]


def test_the_draw_of_negatives_follows_the_seed() -> None:
    """Two ranks must draw the same rows, and another seed must be able to draw others."""
    negatives = {"q1": ["d2", "d4", "d5"], "q2": ["d1", "d3", "d4"]}
    draws = [training_rows(DATA, negatives=negatives, seed=seed) for seed in (0, 0, 1, 2, 3)]
    assert draws[0] == draws[1]
    assert any(draw != draws[0] for draw in draws[2:])


def test_teacher_scores_follow_their_documents() -> None:
    """A score must stand at the place of its document, the positive's first."""
    scores = {"q1": {"d1": 0.9, "d3": 0.8, "d2": 0.1}, "q2": {"d2": 0.7, "d1": 0.2}}
    rows = training_rows(DATA, negatives={"q1": ["d2"], "q2": ["d1"]}, scores=scores)
    assert [row["label"] for row in rows] == [[0.9, 0.1], [0.8, 0.1], [0.7, 0.2]]
    assert validate_columns(rows) == ("anchor", "positive", "negative_1")
    with pytest.raises(DataError, match="query 'q2': no teacher score for the document 'd2'"):
        training_rows(DATA, scores={"q1": scores["q1"]})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "test"}, r"no split 'test'; its splits are \['train'\]"),
        ({"negatives": {"q1": ["d2"]}}, "query 'q2': 0 negatives, fewer than the 1 asked"),
        ({"negatives": {"q1": ["d9"], "q2": ["d1"]}}, "query 'q1': the negative 'd9' is not in the corpus"),
        ({"negatives": {"q1": ["d3"], "q2": ["d1"]}}, "'d3' is both a positive and a negative"),
        ({"negatives_per_row": 0}, "at least 1, got 0"),
    ],
)
def test_rows_that_cannot_be_made_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Each of these would train on something else than asked."""
    with pytest.raises(ValueError, match=message):
        training_rows(DATA, **arguments)


def test_a_query_without_a_positive_is_refused() -> None:
    """A set made in memory has passed no loader."""
    data = RetrievalData("toy", {"d1": "heap"}, {"q1": "least"}, {"train": {"q1": {"d1": 0}}})
    with pytest.raises(DataError, match="toy, split 'train', query 'q1': no positive"):
        training_rows(data)


def row(**changed: Any) -> dict[str, Any]:
    return {"anchor": "a", "positive": "p", "negative_1": "n", "label": [0.5, 0.25]} | changed


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds no row"),
        ([{"anchor": "a"}], "expected the text columns anchor, positive"),
        ([{"positive": "p", "anchor": "a"}], "in this order"),
        ([{"anchor": "a", "positive": "p", "negative_2": "n"}], "in this order"),
        ([{"anchor": "a", "positive": "p", "score": 1.0}], "expected the text columns"),
        ([row(), {"anchor": "a", "positive": "p"}], r"row 1 has the columns \['anchor', 'positive'\]"),
        ([row(), row(positive=3)], "column 'positive', row 1: expected text, got 3"),
        ([row(anchor=None)], "column 'anchor', row 0: expected text, got None"),
        ([row(negative_1=float("nan"))], "column 'negative_1', row 0: expected text, got nan"),
        ([row(anchor=" ")], "column 'anchor', row 0: the text is blank"),
        ([row(label=[0.5])], r"column 'label', row 0: expected 2 teacher scores .* got \[0.5\]"),
        ([row(), row(label=0.5)], "column 'label', row 1: expected 2 teacher scores"),
        ([row(label=[0.5, float("nan")])], "column 'label', row 0: expected finite numbers"),
        ([row(label=[0.5, float("inf")])], "column 'label', row 0: expected finite numbers"),
        ([row(label=[0.5, "1"])], "column 'label', row 0: expected finite numbers"),
    ],
)
def test_rows_outside_the_contract_are_refused(rows: list[dict[str, Any]], message: str) -> None:
    """The trainer would read such rows as something else, or fail far from the cause."""
    with pytest.raises(DataError, match=message):
        validate_columns(rows)


def test_a_blank_negative_is_allowed() -> None:
    """Published corpora hold blank documents, and mining may find one."""
    assert validate_columns([row(negative_1="")]) == ("anchor", "positive", "negative_1")


def test_a_dataset_is_checked_like_rows() -> None:
    """The trainer gets a `datasets.Dataset`, whose columns are typed."""
    datasets = pytest.importorskip("datasets")
    assert validate_columns(datasets.Dataset.from_list([row(), row()])) == (
        "anchor",
        "positive",
        "negative_1",
    )
    with pytest.raises(DataError, match="column 'positive', row 0: expected text, got 1"):
        validate_columns(datasets.Dataset.from_dict({"anchor": ["a"], "positive": [1]}))
    with pytest.raises(DataError, match="column 'positive', row 1: expected text, got None"):
        validate_columns(datasets.Dataset.from_dict({"anchor": ["a", "b"], "positive": ["p", None]}))
    with pytest.raises(DataError, match="holds no row"):
        validate_columns(datasets.Dataset.from_dict({"anchor": [], "positive": []}))
