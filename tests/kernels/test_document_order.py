"""The order that puts similar documents beside each other."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from lexforge.kernels.document_order import similar_neighbours


def csr(dense) -> sparse.csr_array:
    return sparse.csr_array(np.asarray(dense, np.float32))


def test_copies_share_a_block() -> None:
    """Sixteen documents of their own terms, eight jittered copies each, shuffled: blocks must be pure."""
    rng = np.random.default_rng(0)
    originals = np.kron(np.eye(16), np.ones(4))
    which = rng.permutation(np.repeat(np.arange(16), 8))
    order = similar_neighbours(csr(originals[which] * rng.uniform(0.8, 1.2, (128, 64))), 8)
    assert sorted(order.tolist()) == list(range(128))
    pure = [len(set(block)) == 1 for block in which[order].reshape(16, 8).tolist()]
    assert np.mean(pure) >= 0.8  # by chance none is


def test_it_is_the_same_at_every_call() -> None:
    """A saved index and one built again must agree to the byte."""
    documents = csr(np.random.default_rng(1).random((77, 9)))
    assert (similar_neighbours(documents, 4) == similar_neighbours(documents, 4)).all()


def test_documents_without_a_term_huge_weights_and_none_at_all() -> None:
    """Each must give a permutation, without a warning."""
    for dense in (np.zeros((0, 3)), np.zeros((9, 3)), np.full((9, 3), 3e38), [[1, 0], [0, 0], [0, 1e-45]]):
        order = similar_neighbours(csr(dense), 2)
        assert sorted(order.tolist()) == list(range(len(dense)))
