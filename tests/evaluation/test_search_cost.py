"""Active dimensions and expected operations, by hand and by counting every pair."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from lexforge.evaluation import measure_sparsity


def csr(dense) -> sparse.csr_array:
    return sparse.csr_array(np.asarray(dense, np.float32))


def test_flops_is_the_mean_number_of_common_terms() -> None:
    """The product of shares is the mean over all pairs of the terms they have in common."""
    rng = np.random.default_rng(0)
    queries, documents = rng.random((7, 20)) < 0.3, rng.random((11, 20)) < 0.4
    result = measure_sparsity(csr(queries * 2.5), csr(documents * 0.1))
    common = [sum(q & d) for q in queries for d in documents]
    assert result["flops"] == pytest.approx(np.mean(common))
    assert result["query_active_dims"] == pytest.approx(np.mean([sum(q) for q in queries]))
    assert result["document_active_dims"] == pytest.approx(np.mean([sum(d) for d in documents]))


def test_stored_zeros_are_not_active() -> None:
    """A model that writes zeros into its sparse tensor is not denser for it."""
    matrix = sparse.csr_array((np.array([0.0, 2.0]), np.array([0, 1]), np.array([0, 2])), shape=(1, 3))
    assert measure_sparsity(matrix, matrix)["query_active_dims"] == 1


def test_refusals() -> None:
    """A mean over nothing, and vectors of two vocabularies."""
    with pytest.raises(ValueError, match="as many columns; received 2 and 3"):
        measure_sparsity(csr(np.ones((1, 2))), csr(np.ones((1, 3))))
    with pytest.raises(ValueError, match="received 1 queries and 0 documents"):
        measure_sparsity(csr(np.ones((1, 2))), csr(np.ones((0, 2))))
