"""Dense search: the FAISS index, exact and approximate, beside sentence-transformers' semantic_search.

    python scripts/bench/bench_dense_index.py --vectors FILE.npz --model MODEL --data FOLDER FOLDER ...

records the vectors first, as bench_index.py does: MODEL encodes the corpora and queries of the BEIR folders
into FILE; without `--model` FILE is read. An exact search must find the k best; of an approximate one the
recall is given: the share of the k best that it finds, any document of equal score counting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
import tyro
from bench_index import encoded, timed
from sentence_transformers.util import dot_score, semantic_search

from lexforge.models.load import load_encoder
from lexforge.retrieval import FaissIndex

LAYOUTS = (
    ("Flat", ""),
    ("HNSW32", "efConstruction=200,efSearch=32"),
    ("HNSW32", "efConstruction=200,efSearch=128"),
    ("IVF256,Flat", "nprobe=8"),
    ("IVF256,Flat", "nprobe=32"),
)


@dataclass(frozen=True)
class Config:
    """What to search."""

    vectors: Path
    model: str | None = None
    data: tuple[Path, ...] = ()
    queries: int = 1000
    k: int = 10
    max_seq_length: int = 128
    repeats: int = 3


@dataclass(frozen=True)
class Search:
    """A way to search, ready to be timed: `call` searches, `positions` says what it found."""

    name: str
    setting: str
    exact: bool
    build_s: float
    call: Callable[[], Any]
    positions: Callable[[Any], list[list[int]]]


def record(cfg: Config) -> None:
    """Encode the corpora and queries of the folders."""
    model = load_encoder(cfg.model or "", max_seq_length=cfg.max_seq_length)
    parts = dict(encoded(model, cfg.data, cfg.queries))
    cfg.vectors.parent.mkdir(parents=True, exist_ok=True)
    np.savez(cfg.vectors, **{name: np.concatenate(vectors) for name, vectors in parts.items()})


def searches(queries: np.ndarray, documents: np.ndarray, k: int) -> Iterator[Search]:
    """FAISS in each layout, then the peer; each is built when its turn comes."""
    ids = [str(row) for row in range(len(documents))]
    for layout in LAYOUTS:
        index, build_s = timed(lambda layout=layout: FaissIndex.build(documents, ids, "dot", *layout))

        def call(index: FaissIndex = index) -> Any:
            return index.search(queries, k)

        yield Search(
            "lexforge",
            " ".join(layout).strip(),
            layout[0] == "Flat",
            build_s,
            call,
            lambda hits: [[int(name) for name in row] for row in hits.ids],
        )
    tensors = torch.from_numpy(queries), torch.from_numpy(documents)
    yield Search(
        "semantic_search",
        "",
        True,
        0.0,
        lambda: semantic_search(*tensors, top_k=k, score_function=dot_score),
        lambda found: [[hit["corpus_id"] for hit in row] for row in found],
    )


def main(cfg: Config) -> None:
    """Record if a model is given, then search in every way; an exact one must agree with the product."""
    if cfg.model is not None:
        record(cfg)
    with np.load(cfg.vectors) as file:
        documents, queries = file["documents"], file["queries"][: cfg.queries]
    kth = np.partition(queries @ documents.T, -cfg.k, axis=1)[:, -cfg.k]
    for search in searches(queries, documents, cfg.k):
        found = search.positions(search.call())
        reached = [
            np.count_nonzero(documents[row] @ query >= score - 1e-5)  # float32 sums in other orders
            for row, query, score in zip(found, queries, kth, strict=True)
        ]
        recall = float(sum(reached)) / (len(queries) * cfg.k)
        if search.exact and recall != 1:
            raise AssertionError(f"{search.name} {search.setting} finds {recall:.4f} of the {cfg.k} best")
        cost = common.measure(search.call, cfg.repeats)
        size = {"documents": len(documents), "width": documents.shape[1], "queries": len(queries), "k": cfg.k}
        result = {"queries_per_s": round(len(queries) / cost["median_s"], 1), "recall": round(recall, 4)}
        row = {"search": search.name, "setting": search.setting, **size, **cost, **result}
        common.append_rows("dense_index", [row | {"build_s": search.build_s}])


if __name__ == "__main__":
    main(tyro.cli(Config))
