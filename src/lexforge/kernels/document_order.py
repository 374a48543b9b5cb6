"""An order of documents in which neighbours hold similar terms, so that their blocks have tight bounds.

The documents are projected to a few dimensions by random signs, which nearly keeps inner products
(Achlioptas, "Database-friendly random projections", 2003). Then they are divided again and again at the
median of their principal direction (a principal direction tree; Verma, Kpotufe and Dasgupta, 2009), all nodes
of a level at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

DIMENSIONS = 64  # dimensions of the projected documents
ITERATIONS = 4  # iterations of the power method; the direction must only separate, it need not have converged


def similar_neighbours(documents: sparse.csr_array, leaf: int) -> NDArray[np.int64]:
    """Return an order of the rows that puts similar documents beside each other; every call returns the same.

    Args:
        documents: CSR `[N, V] float32`.
        leaf: Documents per block; the documents are only divided between two blocks.

    Returns:
        A permutation `[N]` of 0 to N - 1.
    """
    rng = np.random.default_rng(0)
    signs = rng.integers(0, 2, (documents.shape[1], DIMENSIONS)).astype(np.float32) * 2 - 1  # [V, 64]
    # Each document is divided by its largest weight, so that no sum of its weights overflows.
    filled = np.diff(documents.indptr) > 0
    largest = np.ones(documents.shape[0], np.float32)
    if filled.any():
        largest[filled] = np.maximum.reduceat(documents.data, documents.indptr[:-1][filled])
    data = documents.data / np.repeat(largest, np.diff(documents.indptr))
    shares = sparse.csr_array((data, documents.indices, documents.indptr), shape=documents.shape)
    vectors = np.asarray(shares @ signs, np.float32)  # [N, 64]
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors /= np.where(norms > 0, norms, 1)
    order = np.arange(len(vectors))
    bounds = np.array([0, len(vectors)])  # where the nodes of this level begin and end in the order
    while np.diff(bounds).max() > leaf:
        nodes = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        order = order[np.lexsort((_along_principal_direction(vectors[order], bounds, nodes), nodes))]
        blocks = -(-np.diff(bounds) // leaf)
        middles = bounds[:-1] + blocks // 2 * leaf
        bounds = np.union1d(bounds, middles[blocks > 1])
    return order


def _along_principal_direction(
    vectors: NDArray[np.float32], bounds: NDArray[np.int64], nodes: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the place of each vector along the direction of largest variance in its node.

    Args:
        vectors: `[N, D]`; it is overwritten.
        bounds: `[M + 1]`, where each of the M nodes begins and ends; every node has at least one row.
        nodes: `[N]`, the node of each row.

    Returns:
        `[N]`.
    """
    sizes = np.diff(bounds)[:, None]
    vectors -= (np.add.reduceat(vectors, bounds[:-1], axis=0) / sizes)[nodes]
    far = np.zeros(len(sizes), np.int64)
    far[nodes] = np.arange(len(nodes))  # the iteration starts with the last row of each node
    direction = vectors[far]
    place = np.zeros(len(nodes), np.float32)
    for _ in range(ITERATIONS):
        place = np.einsum("nd,nd->n", vectors, direction[nodes])
        direction = np.add.reduceat(vectors * place[:, None], bounds[:-1], axis=0)
        norms = np.linalg.norm(direction, axis=1, keepdims=True)
        direction /= np.where(norms > 0, norms, 1)
    return place
