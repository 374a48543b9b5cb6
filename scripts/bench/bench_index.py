"""Exact sparse search: the inverted index beside scipy, sparse_dot_topn and sentence-transformers.

    python scripts/bench/bench_index.py --model MODEL --data FOLDER

Documents are recorded vectors: MODEL encodes the corpus of FOLDER (BEIR layout), the rows are repeated up to
each size in `--sizes`, every repeated weight times a random factor in [.8, 1.2].
Every peer must return the index's scores before it is timed; sparse_dot_topn is left out where not installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import numba
import numpy as np
import torch
import tyro
from scipy import sparse
from sentence_transformers.util import dot_score, semantic_search

from lexforge.data import load_beir
from lexforge.evaluation.encoding import CorpusEncoder, encode
from lexforge.models import build_splade
from lexforge.retrieval import InvertedIndex

SLOW_QUERIES = 64  # queries given to semantic_search: it takes minutes for all
CHUNK = 64  # queries a product of scipy: the scores of all of them at once would not fit into memory


@dataclass(frozen=True)
class Config:
    """What to search."""

    model: str
    data: Path
    split: str = "test"
    queries: int = 1000
    sizes: tuple[int, ...] = (43_688, 349_504)
    k: int = 10
    max_seq_length: int = 128
    cache_dir: Path | None = None  # keeps the encoded corpus
    seed: int = 0


def repeated(vectors: sparse.csr_array, rows: int, seed: int) -> sparse.csr_array:
    """The vectors and jittered copies of them, up to a number of rows."""
    rng = np.random.default_rng(seed)
    copies = [vectors]
    for _ in range(1, -(-rows // vectors.shape[0])):
        factors = rng.uniform(0.8, 1.2, vectors.nnz).astype(np.float32)
        copies.append(
            sparse.csr_array((vectors.data * factors, vectors.indices, vectors.indptr), shape=vectors.shape)
        )
    return sparse.csr_array(sparse.vstack(copies, format="csr"))[:rows]


def scipy_scores(queries: sparse.csr_array, by_term: sparse.csr_array, k: int) -> np.ndarray:
    """The k best scores of each query by sparse products."""
    best = []
    for start in range(0, queries.shape[0], CHUNK):
        scores = (queries[start : start + CHUNK] @ by_term).toarray()
        top = np.take_along_axis(scores, np.argpartition(-scores, k - 1, axis=1)[:, :k], axis=1)
        best.append(-np.sort(-top, axis=1))
    return np.concatenate(best)


def torch_sparse(matrix: sparse.csr_array) -> torch.Tensor:
    coo = matrix.tocoo()
    return torch.sparse_coo_tensor(
        np.stack(coo.coords), coo.data, coo.shape, check_invariants=False
    ).coalesce()


def peers(
    queries: sparse.csr_array, documents: sparse.csr_array, k: int
) -> dict[str, tuple[int, Callable[[], np.ndarray]]]:
    """Name to the number of queries and a call that returns their best scores, `[queries, k]`."""
    by_term = sparse.csr_array(documents.T.tocsr())
    few, corpus = torch_sparse(queries[:SLOW_QUERIES]), torch_sparse(documents)

    def semantic() -> np.ndarray:
        found = semantic_search(few, corpus, top_k=k, score_function=dot_score)
        return np.array([[hit["score"] for hit in row] for row in found])

    calls: dict[str, tuple[int, Callable[[], np.ndarray]]] = {
        "scipy": (queries.shape[0], lambda: scipy_scores(queries, by_term, k)),
        "semantic_search": (few.shape[0], semantic),
    }
    if importlib.util.find_spec("sparse_dot_topn"):
        from sparse_dot_topn import sp_matmul_topn

        left, right, threads = sparse.csr_matrix(queries), sparse.csr_matrix(by_term), numba.get_num_threads()

        def topn() -> np.ndarray:
            found = sp_matmul_topn(left, right, top_n=k, sort=True, n_threads=threads)
            return found.data.reshape(-1, k)

        calls["sparse_dot_topn"] = (queries.shape[0], topn)
    return calls


def bench(queries: sparse.csr_array, documents: sparse.csr_array, k: int) -> list[dict[str, Any]]:
    """Rows for one corpus; every peer agrees with the index first."""
    index = InvertedIndex.build(documents, [str(row) for row in range(documents.shape[0])])
    expected = np.stack(index.search(queries, k).scores)  # every query of the set has k hits
    calls = {"lexforge": (queries.shape[0], lambda: np.stack(index.search(queries, k).scores))}
    rows = []
    for name, (count, call) in (calls | peers(queries, documents, k)).items():
        np.testing.assert_allclose(call(), expected[:count], rtol=1e-4)  # float32 sums in other orders
        time = common.measure(call)
        shape = {"documents": documents.shape[0], "active": round(documents.nnz / documents.shape[0], 1)}
        asked = {"queries": count, "query_active": round(queries.nnz / queries.shape[0], 1), "k": k}
        speed = {"queries_per_s": round(count / time["median_s"], 1)}
        rows.append({"search": name, **shape, **asked, "threads": numba.get_num_threads(), **time, **speed})
    return rows


def main(cfg: Config) -> None:
    """Encode, repeat, search."""
    data, model = load_beir(cfg.data), build_splade(cfg.model, max_seq_length=cfg.max_seq_length)
    texts = list(data.split_queries(cfg.split).values())[: cfg.queries]
    queries = encode(model, texts, "query")
    documents, _ = CorpusEncoder(list(data.corpus.values()), 32, cfg.cache_dir).encode(model, True)
    for size in cfg.sizes:
        common.append_rows("index", bench(queries, repeated(documents, size, cfg.seed), cfg.k))


if __name__ == "__main__":
    main(tyro.cli(Config))
