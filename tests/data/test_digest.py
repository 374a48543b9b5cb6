"""A changed text, judgement or label changes the digest of its part, and nothing else does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from beir_folders import write_beir
from datasets import Dataset

from lexforge.data import (
    MultiLabelData,
    TrainingData,
    digests,
    load_training_data,
)
from lexforge.data.multilabel import LabelledText
from lexforge.negatives import rows_of_judgements

QRELS = "query-id\tcorpus-id\tscore\n"


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def beir(folder: Path, word: str) -> str:
    corpus, queries = {"d1": f"an {word} of lists", "d2": "a tree"}, {"q1": "list", "q2": "tree"}
    qrels = {"train": {"q1": {"d1": 1}}, "test": {"q2": {"d2": 1}}}
    return str(write_beir(folder, corpus, queries, qrels))


def msmarco(folder: Path, word: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "collection.tsv").write_text(f"1\tan {word} of lists\n2\ta tree\n")
    (folder / "queries.train.tsv").write_text("10\tlist\n")
    (folder / "queries.dev.small.tsv").write_text("20\ttree\n")
    (folder / "qrels.train.tsv").write_text("10\t0\t1\t1\n")
    (folder / "qrels.dev.small.tsv").write_text("20\t0\t2\t1\n")
    return str(folder)


def rows_of_texts(folder: Path, word: str) -> str:
    folder.mkdir(exist_ok=True)
    train = {"query": "list", "positive": f"an {word} of lists", "split": "train"}
    test = {"query": "tree", "positive": "a tree", "split": "test"}
    (folder / "rows.jsonl").write_text(lines(train, test))
    return str(folder / "rows.jsonl")


def hub(folder: Path, word: str) -> str:
    folder.mkdir(exist_ok=True)
    for split, query, text in (("train", "list", f"an {word} of lists"), ("test", "tree", "a tree")):
        (folder / f"{split}.jsonl").write_text(lines({"query": query, "positive": text}))
    return f"hf:{folder}"


def loaded_digests(source: str) -> dict[str, Any]:
    loaded: TrainingData = load_training_data(source, ["test"])
    rows = loaded.training_rows() if loaded.retrieval is None else rows_of_judgements(loaded.retrieval)
    return loaded.digests(rows)


@pytest.mark.parametrize("write", [beir, msmarco, rows_of_texts, hub])
def test_another_text_under_the_same_path_is_told(write: Callable[[Path, str], str], tmp_path: Path) -> None:
    """Whatever holds the texts. A file that was copied has another time, and is the same."""
    before = loaded_digests(write(tmp_path / "data", "order"))
    assert {name: part["count"] for name, part in before.items()} == {
        "documents": 2,
        "queries": 2 if write in (beir, msmarco) else 1,
        "judgements": 2 if write in (beir, msmarco) else 1,
        "rows": 1,
        "searched documents": 2,
        "judged queries": 1,
    }
    source = write(tmp_path / "data", "order")
    for path in (tmp_path / "data").rglob("*.*"):
        os.utime(path, (0, 0))
    assert loaded_digests(source) == before
    after = loaded_digests(write(tmp_path / "data", "array"))
    assert [name for name in before if after[name] != before[name]] == [
        "documents",
        "rows",
        "searched documents",
    ]


def test_the_order_of_the_documents_is_no_part_of_what_is_searched(tmp_path: Path) -> None:
    """What is held out for dev changes their order; an evaluation that holds nothing out finds the same."""
    source = beir(tmp_path / "data", "order")
    searched, whole = (loaded_digests(source)[name] for name in ("searched documents", "documents"))
    corpus = tmp_path / "data" / "corpus.jsonl"
    corpus.write_text("".join(reversed(corpus.read_text().splitlines(keepends=True))))
    after = loaded_digests(source)
    assert after["searched documents"] == searched
    assert after["documents"] != whole  # a resumed run draws its samples by place


def test_judgements_and_scores_are_data_too() -> None:
    """A teacher's score that changed trains another model from the same texts."""
    rows = [{"anchor": "a", "positive": "b", "negative_1": "c", "label": [1.0, 0.5]}]
    for form in (list, Dataset.from_list):
        before = digests({"rows": form(rows)})
        assert digests({"rows": form(rows)}) == before
        assert digests({"rows": form([{**rows[0], "label": [1.0, 0.25]}])}) != before


def test_labels_are_data_too() -> None:
    """Of the same texts another label makes another training set, and of the split that holds it alone."""

    def labelled(label: str) -> dict[str, Any]:
        texts = {
            "train": [LabelledText("1", "sort", ("lists",))],
            "dev": [LabelledText("2", "read", (label,))],
        }
        return MultiLabelData("topics", ("lists", "files"), texts).digests()

    before, after = labelled("files"), labelled("lists")
    assert [name for name in before if after[name] != before[name]] == ["dev"]
