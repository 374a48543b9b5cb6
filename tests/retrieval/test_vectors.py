"""Vectors as the indexes take them; what they refuse is tested through each index, in test_protocol.py."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from lexforge.retrieval.vectors import dense_vectors, dense_width, sparse_vectors


def test_unit_length_by_hand() -> None:
    """(3, 4) becomes (.6, .8), sparse and dense; a row of zeros stays, without a warning."""
    rows = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
    expected = np.array([[0.6, 0.8], [0.0, 0.0]], np.float32)
    assert (sparse_vectors(sparse.csr_array(rows), "queries", 2, "cosine").toarray() == expected).all()
    assert (dense_vectors(rows, "queries", 2, "cosine") == expected).all()


def test_values_that_float32_cannot_hold_are_refused() -> None:
    """They would become infinite after the check."""
    with pytest.raises(ValueError, match="documents row 0 holds a value that is not finite"):
        dense_vectors(np.array([[1.0, 1e39]]), "documents", 2, "dot")


def test_the_other_kind_of_matrix_is_refused() -> None:
    """Sparse vectors in a dense index are a mistake of the caller."""
    with pytest.raises(TypeError, match="queries must be a 2-dimensional float array; received csr_array"):
        dense_width(sparse.csr_array(np.ones((1, 2))), "queries")
