"""Millions of documents in an index on the disk: time and memory to write it, to open it and to search it.

    python scripts/bench/bench_index_memory.py --vectors FILE --sizes 1048576 8841823

FILE is what bench_index.py recorded; the documents are simulated from it (`simulated.py`), a segment
at a time. `seconds` of `write` leaves out the making of the documents, whose memory counts. The peak is the
largest resident memory of a process of its own; a page of a memory-mapped file counts once it was read, and
the system may drop it again. `first_s` is the first search, which reads what is not in the system's cache.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
import numba
import tyro
from bench_index import read
from scipy import sparse
from simulated import Simulation

from lexforge.corpus.stored_index import ROWS
from lexforge.retrieval import InvertedIndex


@dataclass(frozen=True)
class Config:
    """What to write and search, and where."""

    vectors: Path
    sizes: tuple[int, ...] = (1_048_576, 8_841_823)  # the second is that of MS MARCO
    ks: tuple[int, ...] = (10, 100, 1000)
    queries: int = 832
    repeats: int = 3
    folder: Path | None = None  # for the indexes, some 10 GB; None takes the system's temporary folder


class Segments:
    """Simulated documents of a number, a segment at a time, and the seconds that it took to make them."""

    def __init__(self, vectors: sparse.csr_array, documents: int) -> None:
        self.documents, self.postings, self.seconds = documents, 0, 0.0
        self._blocks = Simulation(vectors).blocks(documents)

    def __iter__(self) -> Iterator[tuple[sparse.csr_array, list[str]]]:
        """Yield vectors and ids."""
        for first in range(0, self.documents, ROWS):
            start, parts, rows = time.perf_counter(), [], min(ROWS, self.documents - first)
            while sum(part.shape[0] for part in parts) < rows:
                parts.append(next(self._blocks))
            vectors = sparse.csr_array(sparse.vstack(parts, format="csr"))
            ids = [str(first + row) for row in range(rows)]
            self.postings += vectors.nnz
            self.seconds += time.perf_counter() - start
            yield vectors, ids


def write(cfg: Config, documents: int, folder: str) -> dict[str, Any]:
    """Write the index."""
    vectors = read(cfg.vectors, "documents")
    warm = next(iter(Segments(vectors, 64)))
    InvertedIndex.build(*warm)  # compiles the construction before it is timed
    segments = Segments(vectors, documents)
    start_mb, start = common.reset_peak(), time.perf_counter()
    InvertedIndex.write(folder, segments, vectors.shape[1], documents)
    seconds = time.perf_counter() - start - segments.seconds
    size = sum(file.stat().st_size for file in Path(folder).iterdir())
    return row("write", documents, seconds, start_mb, postings=segments.postings, disk_mb=round(size / 1e6))


def search(cfg: Config, documents: int, folder: str) -> list[dict[str, Any]]:
    """Open the index and search it."""
    queries = read(cfg.vectors, "queries")[: cfg.queries]
    InvertedIndex.build(queries, [str(number) for number in range(queries.shape[0])]).search(queries, 10)
    start_mb, start = common.reset_peak(), time.perf_counter()
    index = InvertedIndex.load(folder)
    rows = [row("open", documents, time.perf_counter() - start, start_mb)]
    for k in cfg.ks:
        start = time.perf_counter()
        index.search(queries, k)
        first = time.perf_counter() - start
        timing = common.measure(lambda k=k: index.search(queries, k), cfg.repeats)
        alone = common.measure(lambda k=k: [index.search(queries[[place]], k) for place in range(100)], 1)
        rows.append(
            {
                **row("search", documents, timing["median_s"], start_mb),
                "k": k,
                "queries": queries.shape[0],
                "first_s": round(first, 2),
                "queries_per_s": round(queries.shape[0] / timing["median_s"], 1),
                "ms_one_query": round(10 * alone["median_s"], 2),
            }
        )
    return rows


def row(action: str, documents: int, seconds: float, start_mb: float, **more: Any) -> dict[str, Any]:
    """What one action cost."""
    empty = dict.fromkeys(
        ("postings", "disk_mb", "k", "queries", "first_s", "queries_per_s", "ms_one_query"), ""
    )
    memory = {"start_mb": round(start_mb), "peak_mb": round(common.peak_mb())}
    threads = numba.get_num_threads()
    times = {"seconds": round(seconds, 2), **memory, "threads": threads}
    return {"action": action, "documents": documents, **times, **empty, **more}


def main(cfg: Config) -> None:
    """Two processes for each size: one writes, one opens and searches."""
    for documents in cfg.sizes:
        with TemporaryDirectory(dir=cfg.folder) as parent:
            folder = str(Path(parent) / "index")
            common.append_rows("index_memory", [common.in_own_process(write, cfg, documents, folder)])
            common.append_rows("index_memory", common.in_own_process(search, cfg, documents, folder))


if __name__ == "__main__":
    main(tyro.cli(Config))
