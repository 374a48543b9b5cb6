"""An order of documents in which neighbours hold similar terms, so that their blocks have tight bounds.

The documents are projected to a few dimensions by random signs, which nearly keeps inner products
(Achlioptas, "Database-friendly random projections", 2003). Then they are divided again and again at the
median of their principal direction (a principal direction tree; Verma, Kpotufe and Dasgupta, 2009). The nodes
of a level are divided by all threads, each node by one, so that the order does not depend on their number.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lexforge.kernels.parallel import inner, parallel

DIMENSIONS = 64  # dimensions of the projected documents
ITERATIONS = 10  # of the power method; the direction must only separate, it need not have converged
SAMPLE = 4096  # documents of a node from which its direction is taken, evenly spread over the node
REORDERED = {"reassoc", "contract"}  # sums may be added up in any fixed order, which vector registers need


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
    vectors = _project(documents.indptr, documents.indices, documents.data, signs)  # [N, 64]
    order = np.arange(len(vectors))
    bounds = np.array([0, len(vectors)])  # where the nodes of this level begin and end in the order
    while np.diff(bounds).max() > leaf:
        blocks = -(-np.diff(bounds) // leaf)
        middles = bounds[:-1] + blocks // 2 * leaf  # a node of one block begins and ends on its left side
        _divide(vectors, order, bounds, middles)
        bounds = np.union1d(bounds, middles)
    return order


@parallel
def _project(offsets, terms, weights, signs):
    """Return the documents of a CSR matrix as vectors `[N, D]` of unit length, or 0 where there is no term.

    Each document is divided by its largest weight first, so that no sum of its weights overflows.
    """
    vectors = np.zeros((len(offsets) - 1, signs.shape[1]), np.float32)
    for document in numba.prange(len(vectors)):
        vector, largest = vectors[document], np.float32(0)
        for posting in range(offsets[document], offsets[document + 1]):
            largest = max(largest, weights[posting])
        for posting in range(offsets[document], offsets[document + 1]):
            share, sign = weights[posting] / largest, signs[terms[posting]]
            for place in range(len(vector)):
                vector[place] += share * sign[place]
        _normalise(vector)
    return vectors


@parallel
def _divide(vectors, order, bounds, middles):
    """Move the documents of each node that come first along its principal direction before its middle.

    Args:
        vectors: `[N, D] float32`.
        order: `[N] int64`, a permutation of the documents, whose nodes are rearranged in place.
        bounds: `[M + 1] int64`, where each of the M nodes begins and ends in the order.
        middles: `[M] int64`, the middle of each node; a node whose middle is its begin is left alone.
    """
    for node in numba.prange(len(middles)):
        first, middle = bounds[node], middles[node]
        if middle > first:
            _divide_node(vectors, order[first : bounds[node + 1]], middle - first)


@inner
def _divide_node(vectors, order, left):
    """Rearrange a node so that the `left` documents with the lowest places along its direction come first.

    Documents on the same side keep their order, and of equal places the first ones go to the left.
    """
    direction = _principal_direction(vectors, order[:: -(-len(order) // SAMPLE)])
    places = np.empty(len(order), np.float32)
    for entry in range(len(order)):
        places[entry] = _dot(vectors[order[entry]], direction)
    highest = np.partition(places, left - 1)[left - 1]  # the highest place on the left side
    equal = left - np.count_nonzero(places < highest)  # documents at this place that go to the left
    right, kept = np.empty(len(order) - left, np.int64), 0
    for entry in range(len(order)):
        goes_left = places[entry] < highest
        if places[entry] == highest and equal > 0:
            goes_left, equal = True, equal - 1
        if goes_left:
            order[kept] = order[entry]
            kept += 1
        else:
            right[entry - kept] = order[entry]
    order[left:] = right


@inner(fastmath=REORDERED)
def _principal_direction(vectors, rows):
    """Return the direction of largest variance of some rows, `[D] float32`, by the power method."""
    mean = np.zeros(vectors.shape[1], np.float32)
    for row in rows:
        for place in range(len(mean)):
            mean[place] += vectors[row, place]
    mean /= np.float32(len(rows))
    direction = vectors[rows[-1]] - mean
    for _ in range(ITERATIONS):
        # The sum of (x - mean) ((x - mean) . direction) over the rows x, without writing x - mean anywhere.
        base, total = _dot(mean, direction), np.float32(0)
        summed = np.zeros(len(mean), np.float32)
        for row in rows:
            vector = vectors[row]
            along = _dot(vector, direction) - base
            total += along
            for place in range(len(summed)):
                summed[place] += along * vector[place]
        direction = summed - total * mean
        _normalise(direction)
    return direction


@inner(fastmath=REORDERED)
def _dot(one, other):
    """Return the inner product of two float32 vectors of equal length."""
    total = np.float32(0)
    for place in range(len(one)):
        total += one[place] * other[place]
    return total


@inner
def _normalise(vector):
    """Scale a vector to unit length in place; a vector of zeros stays as it is."""
    length = np.sqrt(_dot(vector, vector))
    if length > 0:
        vector /= length
