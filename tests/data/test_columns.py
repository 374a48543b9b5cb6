"""The column contract."""

from __future__ import annotations

from typing import Any

import pytest

from lexforge.data import DataError, validate_columns


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
        ([row(), row(positive=3)], "column 'positive', row 1: expected text; received 3"),
        ([row(anchor=None)], "column 'anchor', row 0: expected text; received None"),
        ([row(negative_1=float("nan"))], "column 'negative_1', row 0: expected text; received nan"),
        ([row(anchor=" ")], "column 'anchor', row 0: the text is blank"),
        ([row(anchor="\ufeff")], "column 'anchor', row 0: the text is blank"),
        ([row(label=[0.5])], r"column 'label', row 0: expected 2 teacher scores .* received \[0.5\]"),
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
    for form in ("torch", "numpy"):  # a label of theirs is no list
        validate_columns(datasets.Dataset.from_list([row(), row()]).with_format(form))
    with pytest.raises(DataError, match="column 'positive', row 0: expected text; received 1"):
        validate_columns(datasets.Dataset.from_dict({"anchor": ["a"], "positive": [1]}))
    with pytest.raises(DataError, match="column 'positive', row 1: expected text; received None"):
        validate_columns(datasets.Dataset.from_dict({"anchor": ["a", "b"], "positive": ["p", None]}))
    with pytest.raises(DataError, match="holds no row"):
        validate_columns(datasets.Dataset.from_dict({"anchor": [], "positive": []}))


def test_a_transform_is_run_once_and_its_rows_are_checked() -> None:
    """A transform reads whole rows, may be slow, and gives the columns that train."""
    datasets = pytest.importorskip("datasets")
    read = []

    def joined(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        read.extend(batch["number"])
        texts = [None if number == 7 else f"text {number}" for number in batch["number"]]
        made = {"anchor": batch["word"], "positive": texts, "label": [[0.5]] * len(texts)}
        return made | {"relevant": [[number] for number in batch["number"]]}

    source = datasets.Dataset.from_dict({"word": ["a"] * 9, "number": range(9)})
    lazy = source.with_transform(joined)
    with pytest.raises(DataError, match="column 'positive', row 7: expected text; received None"):
        validate_columns(lazy)
    read.clear()
    assert validate_columns(lazy.select(range(7))) == ("anchor", "positive")
    assert (set(read[:-7]), read[-7:]) == ({0}, list(range(7)))  # the first row tells the columns
    wrong = source.with_transform(lambda batch: joined(batch) | {"relevant": batch["word"]})
    with pytest.raises(DataError, match=r"'relevant', row 0.*received 'a'"):
        validate_columns(wrong.select(range(7)))


def test_relevant_documents_are_no_text_column() -> None:
    """The identities travel beside the texts; a wrong cell is refused with its row."""
    rows = [{"anchor": "a", "positive": "b", "relevant": [1, -(2**63)]}, {"anchor": "c", "positive": "d"}]
    rows[1]["relevant"] = []
    assert validate_columns(rows) == ("anchor", "positive")
    for wrong in (["text"], [True], [2**63], [0.5], 7, None):
        rows[1]["relevant"] = wrong
        with pytest.raises(DataError, match=r"'relevant', row 1.*received"):
            validate_columns(rows)
