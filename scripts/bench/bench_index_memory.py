"""Memory and time of the inverted index over a corpus that is added in blocks, searched, saved and mapped.

    python scripts/bench/bench_index_memory.py --vectors FILE --documents 1145000

FILE is what bench_index.py recorded. Each block is one jittered copy of its documents, made when it is added,
so that the peak is the index' own: the largest resident memory of the process, of which the interpreter, its
libraries and one block hold `start_mb`. A loaded index is memory-mapped: a page counts once it was read, and
the system may drop it again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
import numpy as np
import tyro
from bench_index import read
from scipy import sparse

from lexforge.retrieval import InvertedIndex


@dataclass(frozen=True)
class Config:
    """What to add and search."""

    vectors: Path
    documents: int = 1_000_000
    k: int = 10


def copies(block: sparse.csr_array, rows: int) -> Iterator[sparse.csr_array]:
    """Jittered copies of a block, `rows` rows in all."""
    rng = np.random.default_rng(0)
    for first in range(0, rows, block.shape[0]):
        factors = rng.uniform(0.8, 1.2, block.nnz).astype(np.float32)
        copy = sparse.csr_array((block.data * factors, block.indices, block.indptr), shape=block.shape)
        yield copy[: rows - first]


def row(action: str, start_mb: float, seconds: float, index: InvertedIndex, **more: Any) -> dict[str, Any]:
    """What one action cost."""
    memory = {
        "start_mb": round(start_mb),
        "peak_mb": round(common.peak_mb()),
        "index_mb": round(index.nbytes / 1e6),
    }
    return {"action": action, "documents": len(index), **more, "seconds": round(seconds, 2), **memory}


def build_and_search(cfg: Config, folder: str) -> dict[str, Any]:
    """Add block after block, search, save."""
    block, queries = read(cfg.vectors, "documents"), read(cfg.vectors, "queries")
    start_mb, index, postings = common.reset_peak(), InvertedIndex(block.shape[1]), 0
    start = time.perf_counter()
    for copy in copies(block, cfg.documents):
        index.add(copy, [str(len(index) + number) for number in range(copy.shape[0])])
        postings += copy.nnz
    index.search(queries, cfg.k)
    index.save(folder)
    return row("add, search, save", start_mb, time.perf_counter() - start, index, postings=postings)


def load_and_search(cfg: Config, folder: str, postings: int) -> dict[str, Any]:
    """Map the saved index and search it."""
    queries = read(cfg.vectors, "queries")
    start_mb, start = common.reset_peak(), time.perf_counter()
    index = InvertedIndex.load(folder)
    index.search(queries, cfg.k)
    return row("load, search", start_mb, time.perf_counter() - start, index, postings=postings)


def main(cfg: Config) -> None:
    """Two processes: one builds and saves, one loads."""
    with TemporaryDirectory() as parent:
        folder = str(Path(parent) / "index")
        built = common.in_own_process(build_and_search, cfg, folder)
        common.append_rows("index_memory", [built])
        loaded = common.in_own_process(load_and_search, cfg, folder, built["postings"])
        common.append_rows("index_memory", [loaded])


if __name__ == "__main__":
    main(tyro.cli(Config))
