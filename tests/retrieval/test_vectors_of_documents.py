"""An index gives back the vectors that went in, of all documents or of some."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from lexforge.retrieval import FaissIndex, InvertedIndex

IDS = [f"d{number}" for number in range(300)]
SOME = ["d7", "d299", "d0", "d7"]
PLACES = [7, 299, 0, 7]


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_sparse_vectors_come_back(similarity, tmp_path: Path) -> None:
    """Also from several additions and from the disk."""
    matrix = sparse.random_array((300, 50), density=0.2, rng=np.random.default_rng(0), format="csr")
    matrix = matrix.astype(np.float32)
    index = InvertedIndex(50, similarity)
    index.add(matrix[:120], IDS[:120])
    index.add(matrix[120:], IDS[120:])
    index.save(tmp_path / "index")
    expected = matrix.toarray()
    if similarity == "cosine":
        expected /= np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1e-12)
    for each in (index, InvertedIndex.load(tmp_path / "index")):
        np.testing.assert_allclose(each.vectors().toarray(), expected, rtol=1e-6)
        np.testing.assert_allclose(each.vectors(SOME).toarray(), expected[PLACES], rtol=1e-6)
        assert each.vectors([]).shape == (0, 50)
        with pytest.raises(KeyError, match="x"):
            each.vectors(["x"])


@pytest.mark.parametrize("layout", ["Flat", "HNSW32", "IVF4,Flat"])
def test_dense_vectors_come_back(layout: str) -> None:
    """Whatever the layout; for cosine they have unit length."""
    vectors = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    index = FaissIndex.build(vectors, IDS, "cosine", layout)
    expected = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(index.vectors(), expected, rtol=1e-5)
    np.testing.assert_allclose(index.vectors(SOME), expected[PLACES], rtol=1e-5)
    with pytest.raises(KeyError, match="x"):
        index.vectors(["x"])
