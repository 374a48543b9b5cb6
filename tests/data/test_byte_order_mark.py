"""Windows tools put a byte order mark before UTF-8; every reader of texts reads over it."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from lexforge.data import (
    DataError,
    RetrievalData,
    load_label_sets,
    load_retrieval_data,
    load_sts,
    load_teacher_scores,
    read_training_rows,
)

MARK = "\ufeff"
BEIR = {
    "corpus.jsonl": '{"_id": "d1", "text": "a text"}\n{"_id": "d2", "text": "another"}\n',
    "queries.jsonl": '{"_id": "q1", "text": "ask"}\n',
    "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1\n",
    "qrels/dev.txt": "q1 0 d2 1\n",
}
SCORES = {"scores.tsv": "q1\td1\t2.5\n"}
MSMARCO = {
    "collection.tsv": "d1\ta text\nd2\tanother\n",
    "queries.dev.tsv": "q1\task\n",
    "qrels.dev.tsv": "q1\t0\td1\t1\n",
}


def beir(folder: Path) -> RetrievalData:
    return load_retrieval_data(str(folder))


def msmarco(folder: Path) -> Any:
    data = load_retrieval_data(str(folder))
    return dict(data.corpus), [data.corpus[key] for key in ("d1", "d2")], data.queries, data.qrels


def judged(name: str) -> Callable[[Path], Any]:
    def load(folder: Path) -> Any:
        data = load_retrieval_data(str(folder / name))
        return data.corpus, data.queries, data.qrels

    return load


# The files of a folder, and how they are read. A name that ends in .gz or .zst is compressed.
CASES: dict[str, tuple[dict[str, str], Callable[[Path], Any]]] = {
    "BEIR": (BEIR, beir),
    "BEIR, compressed": ({f"{name}.gz": text for name, text in BEIR.items()}, beir),
    "scores": (BEIR | SCORES, lambda folder: load_teacher_scores(folder / "scores.tsv", beir(folder))),
    "MS MARCO": (MSMARCO, msmarco),
    "MS MARCO, .gz": ({f"{name}.gz": text for name, text in MSMARCO.items()}, msmarco),
    "MS MARCO, .zst": ({f"{name}.zst": text for name, text in MSMARCO.items()}, msmarco),
    **{
        name: ({name: text}, judged(name))
        for name, text in {
            "x.csv": "query,positive\nask,a text\n",
            "x.csv.gz": '"query","positive"\nask,a text\n',
            "x.csv.zst": "query,positive\nask,a text\n",
            "x.tsv": "query\tpositive\nask\ta text\n",
            "without_a_header.tsv": "ask\ta text\nagain\tanother\n",
            "x.jsonl": '{"query": "ask", "positive": "a text"}\n',
            "x.jsonl.gz": '{"query": "ask", "positive": "a text"}\n',
            "x.jsonl.zst": '{"query": "ask", "positive": "a text"}\n',
        }.items()
    },
    "rows": (
        {"x.jsonl": '{"anchor": "a", "positive": "b"}\n'},
        lambda folder: read_training_rows(folder / "x.jsonl"),
    ),
    "sentences": (
        {"x.jsonl": '{"sentence1": "a", "sentence2": "b", "score": 1}\n'},
        lambda folder: load_sts(str(folder / "x.jsonl")),
    ),
    "sentences, CSV": (
        {"x.csv": "sentence1,sentence2,score\na,b,1\n"},
        lambda folder: load_sts(str(folder / "x.csv")),
    ),
    "labels": (
        {"x.jsonl": '{"text": "a ship", "labels": ["sea"]}\n'},
        lambda folder: load_label_sets(str(folder / "x.jsonl"), ["train"]),
    ),
}


def write(folder: Path, files: dict[str, str], before: str) -> Path:
    for name, text in files.items():
        path, content = folder / name, f"{before}{text}".encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".zst":
            with pyarrow.CompressedOutputStream(str(path), "zstd") as stream:
                stream.write(content)
        else:
            path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_files_with_a_mark_read_as_without(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark is no part of the first column's name, the first id or the first JSON object."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files, load = CASES[name]
    # Both folders have one name, because a set is called after it.
    plain = load(write(tmp_path / "plain" / "set", files, ""))
    assert load(write(tmp_path / "marked" / "set", files, MARK)) == plain


def test_a_mark_within_a_file_stays(tmp_path: Path) -> None:
    """It is a character like any other there, and an id that begins with it is another id."""
    lines = '{"_id": "d1", "text": "a"}\n{"_id": "\ufeffd1", "text": "\ufeffb"}\n'
    write(tmp_path, BEIR | {"corpus.jsonl": lines, "qrels/dev.txt": "q1 0 \ufeffd1 1\n"}, MARK)
    assert beir(tmp_path).corpus == {"d1": "a", "\ufeffd1": "\ufeffb"}
    (tmp_path / "corpus.jsonl").write_text(f'{lines}{MARK}{{"_id": "d3", "text": "c"}}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"corpus\.jsonl:3: not a JSON object"):
        beir(tmp_path)
