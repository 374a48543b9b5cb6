"""One function decides which format a source has, and every loader asks it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lexforge.data import (
    DataError,
    check_source,
    load_documents,
    load_label_sets,
    load_retrieval_data,
    load_sts,
    load_training_data,
)
from lexforge.data.formats import FORMATS, beir, detect, docstrings, hub, msmarco, rows, texts

LOADERS: dict[str, Callable[[str], Any]] = {
    "retrieval": load_retrieval_data,
    "documents": load_documents,
    "training": lambda source: load_training_data(source, ["test"]),
    "check": lambda source: check_source(source, ["train"]),
    "scored pairs": load_sts,
    "labelled texts": lambda source: load_label_sets(source, ["train"]),
}


def files(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return str(folder)


@pytest.mark.parametrize(
    ("names", "source", "expected"),
    [
        ([], "docstrings", docstrings),
        ([], "hf:organisation/name:configuration", hub),
        (["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"], "", beir),
        (["corpus.jsonl.zst"], "", beir),
        (["queries.jsonl", "qrels/test.tsv"], "", beir),  # so that the missing file is named
        (["collection.tsv.gz", "queries.train.tsv", "qrels.train.tsv"], "", msmarco),
        (["collection.tsv", "qidpidtriples.train.tsv"], "qidpidtriples.train.tsv", msmarco),
        (["collection.tsv", "triples.train.tsv"], "triples.train.tsv", rows),  # of texts
        (["x.ndjson.zst"], "x.ndjson.zst", rows),
        (["train.csv", "validation-00000-of-00001.parquet"], "", rows),
        (["train.jsonl", "corpus.jsonl", "queries.jsonl"], "", beir),
        (["dataset_dict.json", "train/state.json"], "", rows),
        (["state.json"], "", rows),
        (["corpus.jsonl.gz"], "corpus.jsonl.gz", beir),  # the documents alone
        (["notes.txt"], "notes.txt", texts),
        (["a/b/x.PDF", "a.jpg"], "", texts),
        (["README.md", "train.csv"], "", rows),  # a note beside the data
        (["README.md", "corpus.jsonl"], "", beir),
        (["README.md", "collection.tsv"], "", msmarco),
    ],
)
def test_each_source_has_one_format(names: list[str], source: str, expected: Any, tmp_path: Path) -> None:
    """A folder may hold files of several formats; what it is must not depend on who asks."""
    folder = files(tmp_path, *names)
    assert detect(f"{folder}/{source}" if names else source) is expected


@pytest.mark.parametrize("loader", LOADERS)
def test_an_unknown_source_is_told_all_that_can_be_read(loader: str, tmp_path: Path) -> None:
    """Whoever mistypes a name needs the list, and a file of another format must not be guessed at."""
    known = FORMATS if loader not in ("scored pairs", "labelled texts") else (docstrings, hub, rows)
    files(tmp_path, "notes.docx", ".hidden.txt", ".hidden/x.txt")
    for name, error, message in (
        ("docstring", FileNotFoundError, "there is no file or folder docstring; expected "),
        (f"{tmp_path}/x.csv", FileNotFoundError, f"there is no file or folder {tmp_path}/x.csv; expected "),
        (f"{tmp_path}/notes.docx", DataError, f"{tmp_path}/notes.docx is in no known format; expected "),
        (str(tmp_path), DataError, f"{tmp_path} is in no known format; expected "),
    ):
        with pytest.raises(error) as raised:
            LOADERS[loader](name)
        assert str(raised.value) == message + "; ".join(each.NAME for each in known)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_blank_name_is_not_the_folder_that_one_stands_in(
    loader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell gives "$DATA" without that variable as a blank name, and all texts below were indexed."""
    monkeypatch.chdir(files(tmp_path, "notes.txt"))
    with pytest.raises(FileNotFoundError, match="expected the name of a file or folder; received ''"):
        LOADERS[loader]("")


def test_a_folder_of_judgements_holds_no_scored_pairs(tmp_path: Path) -> None:
    """The folder is known, so the message says what it is."""
    folder = files(tmp_path, "corpus.jsonl", "queries.jsonl", "qrels/test.tsv")
    with pytest.raises(DataError, match=f"^{folder} is a folder in BEIR layout .*; expected docstrings"):
        load_sts(folder)


def test_an_array_of_objects_is_read_for_every_task(tmp_path: Path) -> None:
    """A .json file is one array or lines; retrieval reads both, so the other tasks must."""
    (tmp_path / "x.json").write_text(json.dumps([{"sentence1": "a", "sentence2": "b", "score": 1}] * 2))
    assert load_sts(f"{tmp_path}/x.json") == {
        "train": [{"sentence1": "a", "sentence2": "b", "score": 1.0}] * 2
    }
