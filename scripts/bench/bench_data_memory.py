"""Memory of data that exceed it: pairs with a teacher's embeddings, and MS MARCO's collection.

    python scripts/bench/bench_data_memory.py --pairs 10000 1000000 --documents 10000 1000000

Each measurement runs in a process of its own on files that it makes: pairs of 12 and 60 words in CSV, opened
as a recipe opens `--data`, checked, embedded by a teacher of random vectors of width 64 and looked up in
batches of 32; and a collection.tsv of passages of 60 words, of which 1,000 are sampled for a search and 1,000
read by their ids. `private_mb` is the resident memory at the end that belongs to no file, and `mapped_mb` the
pages of files, which the system may drop; `start_mb` is the private memory before, and holds the libraries.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
import numpy as np
import tyro

COUNTS = (10_000, 1_000_000)
WORDS = [f"word{number}" for number in range(5000)]


class RandomTeacher:
    """A teacher with random embeddings, so that the memory measured is that of the code around a teacher."""

    name, similarity = "random", "cosine"

    def encode(self, texts: Sequence[str], kind: str) -> np.ndarray:
        """`[N, 64]` rows of length 1."""
        rows = np.random.default_rng(0).normal(size=(len(texts), 64)).astype(np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def texts(count: int, words: int) -> Iterator[str]:
    """Texts of random words, each with its number."""
    draw = random.Random(0)
    return (f"{number} {' '.join(draw.choices(WORDS, k=words))}" for number in range(count))


def measure_pairs(count: int, folder: str) -> dict[str, Any]:
    """Open pairs, embed them by a teacher, and look up a pass of batches."""
    import datasets

    from lexforge import data, teachers

    datasets.disable_progress_bars()
    file = Path(folder) / "pairs.csv"
    with file.open("w", encoding="utf-8") as stream:
        stream.write("query,positive,split\n")
        for row, (query, text) in enumerate(zip(texts(count, 12), texts(count, 60), strict=True)):
            stream.write(f"{query},{text},{'test' if row < 100 else 'train'}\n")
    start_mb = common.status_mb("RssAnon")
    loaded = data.load_training_data(str(file), ["test"], documents=1000)
    rows = loaded.training_rows()
    cache = teachers.TeacherCache.build_for_rows(RandomTeacher(), rows, Path(folder) / "cache")
    for batch in rows.iter(32):
        cache.lookup(batch["anchor"], "query")
        cache.lookup(batch["positive"], "document")
    return found("pairs with a teacher", count, start_mb)


def measure_collection(count: int, folder: str) -> dict[str, Any]:
    """Open MS MARCO's files, sample documents to search, and read documents by id."""
    from lexforge import data

    with (Path(folder) / "collection.tsv").open("w", encoding="utf-8") as stream:
        stream.writelines(f"{number}\t{text}\n" for number, text in enumerate(texts(count, 60)))
    for split in ("train", "test"):
        (Path(folder) / f"queries.{split}.tsv").write_text(f"{split}\tword1 word2\n", encoding="utf-8")
        (Path(folder) / f"qrels.{split}.tsv").write_text(f"{split} 0 7 1\n", encoding="utf-8")
    start_mb = common.status_mb("RssAnon")
    loaded = data.load_training_data(folder, ["test"], documents=1000)
    assert loaded.retrieval is not None
    draw = random.Random(1)
    for _ in range(1000):
        number = draw.randrange(count)
        assert loaded.retrieval.corpus[str(number)].startswith(f"{number} ")
    return found("collection", count, start_mb)


def found(what: str, count: int, start_mb: float) -> dict[str, Any]:
    """The row of a measurement."""
    memory = {
        "start_mb": start_mb,
        "private_mb": common.status_mb("RssAnon"),
        "mapped_mb": common.status_mb("RssFile"),
        "peak_mb": common.peak_mb(),
    }
    return {"data": what, "count": count, **{name: round(value) for name, value in memory.items()}}


def main(pairs: tuple[int, ...] = COUNTS, documents: tuple[int, ...] = COUNTS) -> None:
    """Measure each size in a process of its own."""
    for function, counts in ((measure_pairs, pairs), (measure_collection, documents)):
        for count in counts:
            with TemporaryDirectory() as folder:
                common.append_rows("data_memory", [common.in_own_process(function, count, folder)])


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
