"""Vectors as the indexes take them; what they refuse is tested through each index, in test_protocol.py."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from lexforge.retrieval.vectors import dense_vectors, dense_width, sparse_vectors, sparse_width


def test_sparse_rows_become_canonical_and_the_input_stays() -> None:
    """Unsorted, repeated and zero entries are common in CSR matrices made by hand."""
    matrix = sparse.csr_matrix(
        (np.array([2, 1, 1, 0]), np.array([2, 0, 2, 1]), np.array([0, 3, 4])), shape=(2, 3)
    )
    before = matrix.data.copy(), matrix.indices.copy()
    vectors = sparse_vectors(matrix, "documents", 3, "dot")
    assert (vectors.data.tolist(), vectors.indices.tolist(), vectors.indptr.tolist()) == (
        [1, 3],
        [0, 2],
        [0, 2, 2],
    )
    assert vectors.dtype == np.float32
    assert (matrix.data == before[0]).all()
    assert (matrix.indices == before[1]).all()


def test_unit_length_by_hand() -> None:
    """(3, 4) becomes (.6, .8), sparse and dense; a row of zeros stays, without a warning."""
    rows = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
    expected = np.array([[0.6, 0.8], [0.0, 0.0]], np.float32)
    assert (sparse_vectors(sparse.csr_array(rows), "queries", 2, "cosine").toarray() == expected).all()
    assert (dense_vectors(rows, "queries", 2, "cosine") == expected).all()


def test_values_that_float32_cannot_hold_are_refused() -> None:
    """They would become infinite after the check."""
    rows = np.array([[1.0, 1e39]])
    with pytest.raises(ValueError, match="queries row 0, column 1: weight inf"):
        sparse_vectors(sparse.csr_array(rows), "queries", 2, "dot")
    with pytest.raises(ValueError, match="documents row 0 holds a value that is not finite"):
        dense_vectors(rows, "documents", 2, "dot")


def test_the_other_kind_of_matrix_is_refused() -> None:
    """A dense array in a sparse index, or the reverse, is a mistake of the caller."""
    with pytest.raises(TypeError, match="queries must be a 2-dimensional scipy CSR matrix; received ndarray"):
        sparse_width(np.ones((1, 2)), "queries")
    with pytest.raises(TypeError, match="queries must be a 2-dimensional float array; received csr_array"):
        dense_width(sparse.csr_array(np.ones((1, 2))), "queries")
