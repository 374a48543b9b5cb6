"""Scored pairs of sentences."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from lexforge.data import DataError, RetrievalData, load_sts
from lexforge.data.sts import docstring_pairs
from lexforge.settings import StsOptions


def line(**changes: object) -> str:
    return json.dumps({"sentence1": "a", "sentence2": "b", "score": 2.5, "split": "train"} | changes) + "\n"


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_a_file_comes_back_by_split(tmp_path: Path, name: str) -> None:
    """Columns, order and types are what the loss and the evaluator take; the hub's `validation` is `dev`."""
    content = (line() + line(sentence1="c", score=4) + line(split="validation", score=0)).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    rows = load_sts(str(path))
    assert rows == {
        "train": [
            {"sentence1": "a", "sentence2": "b", "score": 2.5},
            {"sentence1": "c", "sentence2": "b", "score": 4.0},
        ],
        "dev": [{"sentence1": "a", "sentence2": "b", "score": 0.0}],
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (line() + line(score="high"), ":2: the score must be a finite number; received 'high'"),
        (line(score=True), ":1: the score must be a finite number"),
        (line().replace("2.5", "NaN"), ":1: the score must be a finite number; received nan"),
        (line(sentence2=None), ":1: 'sentence2' must be a string"),
        (line(sentence1=" "), ":1: a sentence is blank"),
        (line(sentence1="\u200b"), ":1: a sentence is blank"),
        ('{"sentence1": "a"}\n', ":1: expected one sentence2 column"),
        ('{"sentence1": "a", "sentence2": "b"}\n' + line(), ":1: the score must be a finite number"),
        ("", "holds no row"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, content: str, message: str) -> None:
    """A NaN score would turn every later loss into NaN; the user gets file and line instead."""
    path = tmp_path / "x.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load_sts(str(path))


def test_a_first_line_without_a_column_is_a_bad_row(tmp_path: Path) -> None:
    """Its fields were taken for the columns of the file, which was refused although bad rows are left out."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"sentence1": "a", "sentence2": "b"}\n' + line())
    notes: list[str] = []
    assert len(load_sts(str(path), None, StsOptions(bad_rows="skip"), notes)["train"]) == 1
    assert notes[1] == "  wrong values: 1, namely line 1 (None)"


def test_a_split_of_bad_rows_alone_is_missing(tmp_path: Path) -> None:
    """It was there without a row, and training ended with an error about a column."""
    path = tmp_path / "x.jsonl"
    path.write_text(line() + line(score="high", split="dev"))
    options = StsOptions(bad_rows="skip")
    assert list(load_sts(str(path), None, options)) == ["train"]
    with pytest.raises(ValueError, match=r"no split 'dev'; its splits are \['train'\]: --hold-out"):
        load_sts(str(path), ["train", "dev"], options)


def test_a_sentence_is_held_out_whatever_space_stands_around_it(tmp_path: Path) -> None:
    """It was trained on with a space behind it, and measured without one."""
    path = tmp_path / "x.jsonl"
    lines = [line(sentence1=f"{place}{space}") for place in range(40) for space in ("", " ")]
    path.write_text("".join(lines))
    found = load_sts(str(path), ["train", "test"], StsOptions(hold_out=0.2))
    train, test = ({str(row["sentence1"]).strip() for row in rows} for rows in found.values())
    assert train
    assert test
    assert not train & test


def test_a_hub_data_set_loads_through_datasets(tmp_path: Path) -> None:
    """The real hub code runs on a local folder; a missing column is named."""
    (tmp_path / "train.jsonl").write_text(line(), encoding="utf-8")
    (tmp_path / "validation.jsonl").write_text(line(score=1), encoding="utf-8")
    rows = load_sts(f"hf:{tmp_path}")
    assert {split: [row["score"] for row in found] for split, found in rows.items()} == {
        "train": [2.5],
        "dev": [1.0],
    }
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.jsonl").write_text('{"sentence1": "a", "score": 1}\n', encoding="utf-8")
    with pytest.raises(DataError, match="expected one sentence2 column"):
        load_sts(f"hf:{other}")


def test_docstring_pairs_are_graded_by_nearness_in_the_code() -> None:
    """The embedded set claims its grades: each is checked against the dotted names of both sides."""
    names = [f"{package}.{module}.{i}" for package in "pq" for module in ("m", "n") for i in range(6)]
    data = RetrievalData(
        "docstrings",
        {name: f"text of {name}" for name in names},
        {f"query:{name}": f"asks for {name}" for name in names},
        {"train": {f"query:{name}": {name: 1} for name in names}},
    )
    pairs = docstring_pairs(data)["train"]
    assert sorted({row["score"] for row in pairs}) == [0.0, 1.0, 2.0, 3.0]
    for row in pairs:
        first = str(row["sentence1"]).removeprefix("asks for ").split(".")
        second = str(row["sentence2"]).removeprefix("text of ").split(".")
        shared = [a == b for a, b in zip(first, second, strict=True)]
        expected = 3 if all(shared) else 2 if shared[:2] == [True, True] else 1 if shared[0] else 0
        assert row["score"] == expected


def test_a_query_without_such_a_neighbour_is_left_out() -> None:
    """One lone docstring has no sibling: an invented pair would carry a wrong grade."""
    data = RetrievalData("d", {"p.a": "x", "q.b": "y"}, {"1": "one", "2": "two"},
                         {"test": {"1": {"p.a": 1}, "2": {"q.b": 1}}})  # fmt: skip
    assert docstring_pairs(data)["test"] == [{"sentence1": "one", "sentence2": "x", "score": 3.0}]
