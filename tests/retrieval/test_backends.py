"""The list of indexes that have a name: what is refused before any work, and what a name builds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from scipy import sparse

from lexforge.retrieval import (
    FaissIndex,
    InvertedIndex,
    build_exact,
    find_backend,
)
from lexforge.retrieval.backends import BACKENDS
from lexforge.settings import IndexName

ROWS = np.array([[1, 2], [3, 0], [0, 4]], np.float32)
IDS = ["a", "b", "c"]


def test_every_name_has_a_backend() -> None:
    """The type is what a command line offers, the list is what it builds."""
    assert tuple(BACKENDS) == get_args(IndexName)


@pytest.mark.parametrize(
    ("index_name", "vectors", "options", "message"),
    [
        ("bm42", "sparse", {}, "the index must be one of inverted, faiss-flat.*; received 'bm42'"),
        (None, "sparse", {"uri": "x.db"}, "the index must be one of .*; received None"),
        ("faiss-flat", "sparse", {}, "sparse vectors; indexes that do are inverted, milvus, qdrant$"),
        (
            "inverted",
            "dense",
            {},
            "does not hold dense vectors; indexes that do are faiss-flat, faiss-hnsw, ",
        ),
        ("milvus", "dense", {}, r"the index 'milvus' needs the option uri \(--uri\); received no option"),
        ("inverted", "sparse", {"uri": "x.db"}, "the index 'inverted' takes no options; received uri"),
    ],
)
def test_an_index_that_cannot_be_is_refused(
    index_name: Any, vectors: Any, options: dict, message: str
) -> None:
    """The mistake is named before anything is read or encoded."""
    with pytest.raises(ValueError, match=message):
        find_backend(index_name, vectors, options)


def test_a_missing_package_is_named_before_any_work(tmp_path: Path, monkeypatch) -> None:
    """Not after the hours in which a corpus was encoded."""
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(ImportError, match=r"pip install '\."):
        find_backend("milvus", "dense", {"uri": str(tmp_path / "vectors.db")})


@pytest.mark.parametrize(
    ("index_name", "layout"), [("faiss-flat", "Flat"), ("faiss-hnsw", "HNSW32"), ("faiss-ivf", "IVF256,Flat")]
)
def test_a_name_of_a_layout_reaches_the_index(index_name: str, layout: str) -> None:
    """All three names stand for one class; without its layout each would search flat."""
    vectors = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    backend = find_backend(index_name, "dense", {})
    index = backend.index.build(vectors, [str(row) for row in range(300)], "cosine", **backend.settings)
    assert isinstance(index, FaissIndex)
    assert (index.layout, index.similarity) == (layout, "cosine")


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_exact_search_of_sparse_and_dense_vectors(similarity: Any) -> None:
    """Worked by hand: by dot product (1, 2) finds c, a, b with 8, 5, 3; by cosine a, c, b."""
    for documents, expected in ((sparse.csr_array(ROWS), InvertedIndex), (ROWS, FaissIndex)):
        index = build_exact(documents, IDS, similarity)
        assert type(index) is expected
        assert index.ids == IDS
        hits = index.search(documents[:1], 3)
        assert hits.ids == [["c", "a", "b"] if similarity == "dot" else ["a", "c", "b"]]
        if similarity == "dot":
            assert hits.scores[0].tolist() == [8, 5, 3]


def test_what_is_neither_sparse_nor_dense_is_refused() -> None:
    """A list, or a torch tensor, must not be searched as something else."""
    with pytest.raises(TypeError, match="received list"):
        build_exact(ROWS.tolist(), IDS, "dot")
