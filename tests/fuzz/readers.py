"""Every reader of files from outside as a function of bytes, for fuzzers; and a command line for atheris.

    pip install atheris
    python tests/fuzz/readers.py corpus -max_total_time=60

fuzzes the reader `corpus` from its seed below; the options are libFuzzer's, which reports the runs.
What a reader may do with bytes: read them, or raise its own error that names the file. `Reader.feed` raises
AssertionError where it does anything else.
"""

from __future__ import annotations

import gzip
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lexforge.data import (
    DataError,
    RetrievalData,
    load_documents,
    load_label_sets,
    load_retrieval_data,
    load_sts,
    load_teacher_scores,
    read_training_rows,
)
from lexforge.data.lines import NotDecodable
from lexforge.evaluation.metrics import read_scores
from lexforge.evaluation.trec import read_run

CUT = b"\n====\n"  # between the files of a folder


def _cut_gzip(data: bytes) -> bytes:
    return gzip.compress(data)[:-9]


PACKINGS: tuple[Callable[[bytes], bytes] | None, ...] = (None, gzip.compress, bytes, _cut_gzip)


def _named(read: Callable[[Path], Any], name: str) -> Callable[[Path], Any]:
    return lambda folder: read(next(folder.glob(f"{name}*")))


def _multilabel(path: Path) -> Any:
    return [[vars(text) for text in texts] for texts in load_label_sets(str(path)).splits.values()]


def _scores(folder: Path) -> Any:
    data = RetrievalData("set", {"d1": "text", "d2": "text"}, {"q1": "text"}, {})
    return load_teacher_scores(folder / "scores.tsv", data)


@dataclass(frozen=True)
class Reader:
    """A reader of one or more files.

    Args:
        files: Their names in a folder.
        read: From the folder to what JSON can hold.
        error: The only exception it may raise, but for `NotDecodable`.
        seed: Valid content, the files joined by `CUT`.
    """

    files: tuple[str, ...]
    read: Callable[[Path], Any]
    error: type[Exception]
    seed: bytes

    def feed(self, data: bytes, packing: int, folder: Path) -> bool:
        """Whether the bytes were read, as they are (0), gzipped (1), taken for gzip (2) or cut gzip (3)."""
        parts = data.split(CUT, len(self.files) - 1)
        parts += [b""] * (len(self.files) - len(parts))
        pack = PACKINGS[packing]
        for name, part in zip(self.files, parts, strict=True):
            path = folder / (name if pack is None else f"{name}.gz")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(part if pack is None else pack(part))
        try:
            found = self.read(folder)
        except self.error as error:
            if type(error) not in (self.error, NotDecodable) or str(folder) not in str(error):
                raise AssertionError(f"not {self.error}, or without the file: {error!r}") from error
            return False
        finally:
            for name in self.files:
                (folder / name).unlink(missing_ok=True)
                (folder / f"{name}.gz").unlink(missing_ok=True)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode("utf-8")  # text, and finite numbers
        return True


def _jsonl(*rows: Any) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


_CORPUS = _jsonl({"_id": "d1", "title": "", "text": "한국 text"}, {"_id": "d2", "text": "\u2028"})
_QRELS = b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n"
READERS = {
    "beir": Reader(
        ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv"),
        lambda folder: vars(load_retrieval_data(str(folder))),
        DataError,
        CUT.join([_CORPUS, _jsonl({"_id": "q1", "text": "what"}), _QRELS]),
    ),
    "corpus": Reader(("corpus.jsonl",), lambda folder: load_documents(str(folder)), DataError, _CORPUS),
    "texts": Reader(
        ("set/a.md", "set/b.rst", "set/c.txt"),
        lambda folder: load_documents(str(folder / "set")),
        DataError,
        CUT.join(
            [
                b"# Head\n\n[a](b)\n\n```\ncode\n```\n",
                b"Head\n====\n\n`a <b>`_\n",
                "한국 é".encode("cp949", "ignore"),
            ]
        ),
    ),
    "scores": Reader(("scores.tsv",), _scores, DataError, b"q1\td1\t1.5\nq1\td2\t-2e3\n"),
    "multilabel": Reader(
        ("labels.jsonl",),
        _named(_multilabel, "labels"),
        DataError,
        _jsonl({"id": "1", "text": "t", "labels": ["a", "b"], "split": "train"}),
    ),
    "sts": Reader(
        ("pairs.jsonl",),
        _named(lambda path: load_sts(str(path)), "pairs"),
        DataError,
        _jsonl({"sentence1": "a", "sentence2": "b", "score": 4.5, "split": "train"}),
    ),
    "rows": Reader(
        ("rows.jsonl",),
        _named(read_training_rows, "rows"),
        DataError,
        _jsonl(
            {"anchor": "a", "positive": "b", "negative_1": "", "label": [1, 0.5]},
            {"anchor": "c", "positive": "d", "negative_1": "e", "label": [2, 1e3]},
        ),
    ),
    "run": Reader(
        ("run.trec",), _named(read_run, "run"), DataError, b"q1 Q0 d1 1 2.5 tag\nq1 Q0 d2 2 1e-3 tag\n"
    ),
    "measures": Reader(
        ("scores.json",),
        lambda folder: (
            vars(read_scores(folder / "scores.json")) if (folder / "scores.json").exists() else None
        ),
        ValueError,
        b'{"nDCG@10": {"q1": 0.5, "q2": 1}}',
    ),
}


def main() -> None:
    """Fuzz the reader that the first argument names."""
    import atheris

    reader = READERS[sys.argv.pop(1)]
    with TemporaryDirectory() as scratch:
        seeds, folder = Path(scratch, "seeds"), Path(scratch, "files")
        seeds.mkdir()
        folder.mkdir()
        for packing in range(len(PACKINGS)):
            (seeds / str(packing)).write_bytes(bytes([packing]) + reader.seed)
        for name, module in list(sys.modules.items()):
            if name.startswith(("lexforge.data.", "lexforge.evaluation.", "json.")):
                for function in filter(inspect.isfunction, list(vars(module).values())):
                    atheris.instrument_func(function)  # in place

        def feed(data: bytes) -> None:
            reader.feed(data[1:], data[0] % len(PACKINGS) if data else 0, folder)

        atheris.Setup([*sys.argv, str(seeds)], feed)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
