"""Queries that are held out of train: the same ones in every version, and for every shape of data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lexforge.data import (
    RetrievalData,
    SourceOptions,
    load_label_sets,
    load_retrieval_data,
    load_sts,
    load_training_data,
)
from lexforge.settings import MultiLabelOptions, StsOptions

datasets = pytest.importorskip("datasets")

TEXTS = [f"ask {place}" for place in range(20)]
# What the first versions of lexforge chose: a held-out query that moves to train would leak into it.
EXPECTED = {
    "train": [0, 1, 3, 4, 5, 8, 10, 12, 14, 16, 17, 18, 19],
    "test": [2, 7, 9, 13, 15],
    "dev": [6, 11],
}


def write_rows(tmp_path: Path, *rows: dict[str, object]) -> str:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / "rows.jsonl")


def test_judged_queries_fall_to_the_same_splits_as_ever() -> None:
    """A model that was trained by an earlier version is measured on queries that it has not seen."""
    queries = {text: text for text in TEXTS}
    data = RetrievalData("toy", {"d": "text"}, queries, {"train": {text: {"d": 1} for text in TEXTS}})
    held_out = data.hold_out({"test": 0.2, "dev": 0.2}, needed=["test", "dev"])
    assert {split: [TEXTS.index(query) for query in held_out.split(split)] for split in held_out.splits} == (
        EXPECTED
    )


@pytest.mark.parametrize("given_rows", [True, False])
def test_queries_of_the_test_that_are_trained_on_are_told(given_rows: bool, tmp_path: Path) -> None:
    """Files by split often share queries, and a model that was trained on them looks better than it is."""
    parts = [("train", TEXTS[:4]), ("test", TEXTS[:8]), ("dev", TEXTS[8:])]
    rows = ({"query": text, "positive": text * 2, "split": split} for split, texts in parts for text in texts)
    source = write_rows(tmp_path, *rows)
    told = load_training_data(source, ["test", "dev"], given_rows=given_rows).notes
    assert told == (
        f"{source}: queries of the split 'test' that train holds too, which flatters its measures: "
        "4, such as 'ask 0', 'ask 1', 'ask 2'",
    )


def test_texts_and_pairs_of_the_test_that_are_trained_on_are_told(tmp_path: Path) -> None:
    """So it is with texts that get labels, and with scored pairs, whose sentences may stand in both."""
    parts = [("train", "a"), ("test", "a"), ("test", "b")]
    source = write_rows(tmp_path, *({"text": text, "labels": ["x"], "split": split} for split, text in parts))
    told = "of the split 'test' that train holds too, which flatters its measures: 1, namely"
    assert load_label_sets(source, ["train", "test"]).notes[-1] == f"{source}: texts {told} 'a'"
    parts = [("train", "b"), ("test", "b"), ("test", "c"), ("dev", "b")]
    rows = [{"sentence1": "a", "sentence2": other, "score": 1, "split": split} for split, other in parts]
    notes: list[str] = []
    load_sts(write_rows(tmp_path, *rows), ["train", "test"], notes=notes)
    assert notes[-1] == f"{source}: pairs {told} 'a | b'"


def test_rows_fall_to_the_same_splits(tmp_path: Path) -> None:
    """Rows of texts, scored pairs and labelled texts are split as judged queries are, by one rule."""
    wanted = ["train", "dev", "test"]
    source = write_rows(tmp_path, *({"query": text, "positive": "text"} for text in TEXTS))
    pairs = load_training_data(source, ["dev", "test"], SourceOptions(hold_out=0.2)).pairs
    assert pairs is not None
    assert {split: [TEXTS.index(text) for text in pairs.split(split)["anchor"]] for split in wanted} == (
        EXPECTED
    )
    source = write_rows(tmp_path, *({"sentence1": text, "sentence2": "text", "score": 1} for text in TEXTS))
    scored = load_sts(source, wanted, StsOptions(hold_out=0.2))
    assert {split: [TEXTS.index(str(row["sentence1"])) for row in scored[split]] for split in wanted} == (
        EXPECTED
    )
    source = write_rows(tmp_path, *({"text": text, "labels": ["a"]} for text in TEXTS))
    labelled = load_label_sets(source, wanted, MultiLabelOptions(hold_out=0.2))
    assert {split: [TEXTS.index(row.text) for row in labelled.split(split)] for split in wanted} == EXPECTED


@pytest.mark.parametrize("splits", [["train"], ["dev"], ["test"], ["test", "dev"]])
def test_every_command_divides_the_data_alike(splits: list[str], tmp_path: Path) -> None:
    """What `mine` or a run without dev reads as train must not hold what another command measures."""
    source = write_rows(tmp_path, *({"query": text, "positive": "text"} for text in TEXTS))
    data = load_retrieval_data(source, splits, SourceOptions(hold_out=0.2))
    for split in splits:
        asked = data.split_queries(split).values()
        assert [TEXTS.index(text) for text in asked] == EXPECTED[split]


def test_a_split_that_nobody_needs_may_be_empty(tmp_path: Path) -> None:
    """A small file need not have a query for dev where test alone is measured; what is needed is refused
    before training, and not after it.
    """
    source = write_rows(tmp_path, *({"query": text, "positive": "text"} for text in TEXTS))
    few = SourceOptions(hold_out=0.02)
    data = load_retrieval_data(source, ["train", "test"], few)
    assert [len(data.split(split)) for split in ("train", "test")] == [len(TEXTS) - 1, 1]
    with pytest.raises(ValueError, match=r"no query of the split 'train' falls to 'dev'; 0\.02 of them"):
        load_retrieval_data(source, ["dev"], few)
    source = write_rows(tmp_path, *({"sentence1": text, "sentence2": "text", "score": 1} for text in TEXTS))
    with pytest.raises(ValueError, match=r"rows\.jsonl: no query of the split 'train' falls to 'test'"):
        load_sts(source, ["train", "test"], StsOptions(hold_out=1e-6))


def test_no_other_split_is_held_out(tmp_path: Path) -> None:
    """A name that was mistyped is no split, and a share of a set without train is none of its test."""
    source = write_rows(tmp_path, *({"query": text, "positive": "text"} for text in TEXTS))
    with pytest.raises(ValueError, match="has no split 'tets'"):
        load_retrieval_data(source, ["tets"], SourceOptions(hold_out=0.2))
    (tmp_path / "folder").mkdir()
    Path(source).rename(tmp_path / "folder" / "test.jsonl")
    data = load_retrieval_data(str(tmp_path / "folder"), ["test"], SourceOptions(hold_out=0.2))
    assert len(data.split("test")) == len(TEXTS)


def test_rows_of_a_split_that_nobody_reads_are_told(tmp_path: Path) -> None:
    """A mistyped name of a split took its rows out of the training without a word."""
    told = "1 row of the split 'tran' is neither trained on nor measured; those of train, dev and test are"
    splits = ["train", "train", "tran", "validation", "test"]
    pairs = zip(TEXTS, splits, strict=False)
    rows = [{"query": text, "positive": "text", "split": split} for text, split in pairs]
    source = write_rows(tmp_path, *rows)
    assert load_training_data(source, ["test"]).notes == (f"{source}: {told}",)
    assert not load_training_data(source, ["test", "tran"]).notes, "a split that is asked for is read"
    rows = [{"sentence1": row["query"], "sentence2": "x", "score": 1, "split": row["split"]} for row in rows]
    source = write_rows(tmp_path, *rows)
    notes: list[str] = []
    load_sts(source, ["train", "test"], notes=notes)
    assert notes == [f"{source}: {told}"]
    rows = [{"text": row["sentence1"], "labels": ["a"], "split": row["split"]} for row in rows]
    source = write_rows(tmp_path, *rows)
    assert load_label_sets(source, ["train", "test"]).notes == (f"{source}: {told}",)
    assert not load_label_sets(source).notes
