"""Dense search: the FAISS index, exact and approximate, beside sentence-transformers' semantic_search.

    python scripts/bench/bench_dense_index.py --vectors FILE.npz --model MODEL --data FOLDER FOLDER ...

records the vectors first, as bench_index.py does: MODEL encodes the corpora and queries of the BEIR folders
into FILE; without `--model` FILE is read. An exact search must find the k best; of an approximate one the
recall is given: the share of the k best that it finds, any document of equal score counting.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import numpy as np
import torch
import tyro
from bench_index import Search, encoded, timed
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


def searches(queries: np.ndarray, documents: np.ndarray) -> Iterator[Search]:
    """FAISS in each layout, then the peer; each is built when its turn comes."""
    ids = [str(row) for row in range(len(documents))]

    def own_positions(hits: Any) -> list[list[int]]:
        return [[int(name) for name in row] for row in hits.ids]

    for layout in LAYOUTS:
        build = functools.partial(FaissIndex.build, documents, ids, "dot", *layout)
        index, build_s = timed(build)
        setting, call = " ".join(layout).strip(), functools.partial(index.search, queries)
        exact = layout[0] == "Flat"
        yield Search("lexforge", setting, len(queries), call, own_positions, build_s, "", exact)
    pair = torch.from_numpy(queries), torch.from_numpy(documents)

    def semantic(k: int) -> Any:
        return semantic_search(*pair, top_k=k, score_function=dot_score)

    def positions(found: Any) -> list[list[int]]:
        return [[hit["corpus_id"] for hit in row] for row in found]

    yield Search("semantic_search", "", len(queries), semantic, positions, 0.0, "", True)


def main(
    vectors: Path,
    model: str | None = None,
    data: tuple[Path, ...] = (),
    queries: int = 1000,
    k: int = 10,
    max_seq_length: int = 128,
    repeats: int = 3,
) -> None:
    """Record if a model is given, then search in every way; an exact one must agree with the product."""
    if model is not None:
        parts = dict(encoded(load_encoder(model, max_seq_length), data, queries))
        vectors.parent.mkdir(parents=True, exist_ok=True)
        np.savez(vectors, **{name: np.concatenate(arrays) for name, arrays in parts.items()})
    with np.load(vectors) as file:
        documents, asked = file["documents"], file["queries"][:queries]
    kth = np.partition(asked @ documents.T, -k, axis=1)[:, -k]
    for search in searches(asked, documents):
        reached = [
            np.count_nonzero(documents[row] @ query >= score - 1e-5)  # float32 sums in other orders
            for row, query, score in zip(search.positions(search.call(k)), asked, kth, strict=True)
        ]
        recall = float(sum(reached)) / (len(asked) * k)
        if search.exact and recall != 1:
            raise AssertionError(f"{search.name} {search.setting} finds {recall:.4f} of the {k} best")
        cost = common.measure(functools.partial(search.call, k), repeats)
        size = {"documents": len(documents), "width": documents.shape[1], "queries": len(asked), "k": k}
        result = {"queries_per_s": round(len(asked) / cost["median_s"], 1), "recall": round(recall, 4)}
        row = {"search": search.name, "setting": search.setting, **size, **cost, **result}
        common.append_rows("dense_index", [row | {"build_s": search.build_s}])


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
