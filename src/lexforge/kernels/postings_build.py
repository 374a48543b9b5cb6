"""The compiled construction of the arrays that `lexforge.kernels.postings` describes.

Everything is read document by document in the stored order, in which blocks ascend. So the last block of each
term says whether a posting opens a new entry of its list, and no copy of the postings by term is needed.
"""

from __future__ import annotations

import numba
import numpy as np

from lexforge.kernels.parallel import parallel


@parallel
def reorder(offsets, terms, weights, order, new_offsets, new_terms, new_weights):
    """Copy the documents of a CSR matrix in another order.

    Args:
        offsets: `[N + 1]`, where the postings of each document start.
        terms: `[P]`, the term of each posting.
        weights: `[P] float32`.
        order: `[N] int64`, the document that stands at each place of the new order.
        new_offsets: `[N + 1] int64`, where the postings of each document start in the new order.
        new_terms: `[P]`, receives the terms.
        new_weights: `[P] float32`, receives the weights.
    """
    for place in numba.prange(len(order)):
        source, target = offsets[order[place]], new_offsets[place]
        for posting in range(new_offsets[place + 1] - target):
            new_terms[target + posting] = terms[source + posting]
            new_weights[target + posting] = weights[source + posting]


@numba.njit(cache=True)
def measure_terms(offsets, terms, weights, block_size, width):
    """Find the largest weight of each term and the number of blocks that hold it.

    Args:
        offsets: `[N + 1] int64`, the place of each document's first posting; documents in the stored order.
        terms: `[P]`, the term of each posting.
        weights: `[P] float32`, > 0.
        block_size: Documents per block.
        width: The number of terms V.

    Returns:
        `[V] float32`, 0 for a term that no document holds, and `[V] int64`.
    """
    largest = np.zeros(width, np.float32)
    counts, last = np.zeros(width, np.int64), np.full(width, -1)
    for document in range(len(offsets) - 1):
        block = document // block_size
        for posting in range(offsets[document], offsets[document + 1]):
            term = terms[posting]
            largest[term] = max(largest[term], weights[posting])
            counts[term] += block != last[term]
            last[term] = block
    return largest, counts


@numba.njit(cache=True)
def fill_bounds(
    offsets,
    terms,
    weights,
    block_size,
    scales,
    dense_row,
    list_starts,
    dense,
    list_blocks,
    list_levels,
    impacts,
):
    """Write the largest level of each term in every block, into a row over all blocks or into a list.

    A level is the weight as a multiple of the term's scale, from 1 to 255. It is rounded up, because a bound
    must not be below its weight. Where impacts are wanted, they are the levels rounded to the nearest, which
    are then the weights that the bounds must cover.

    Args:
        offsets: `[N + 1] int64`, the place of each document's first posting; documents in the stored order.
        terms: `[P]`, the term of each posting.
        weights: `[P] float32`, > 0.
        block_size: Documents per block.
        scales: `[V] float32`, the scale of each term.
        dense_row: `[V]`, the row of each frequent term in `dense`, -1 for the other terms.
        list_starts: `[V + 1]`, where the list of each other term starts.
        dense: `[R, B] uint8`, zeros at first; it receives the levels of frequent terms.
        list_blocks: `[L] uint16`, receives the blocks of the other terms.
        list_levels: `[L] uint8`, receives the levels of the other terms.
        impacts: `[P] uint8`, receives the levels of all postings; empty if they are not wanted.
    """
    entries = list_starts[:-1] - 1  # the last entry of each list that was written
    last = np.full(len(scales), -1)  # the block of that entry
    for document in range(len(offsets) - 1):
        block = document // block_size
        for posting in range(offsets[document], offsets[document + 1]):
            term = np.int64(terms[posting])
            # The division is done in float64, which is exact enough for its result to be rounded up.
            multiple = np.float64(weights[posting]) / np.float64(scales[term])
            if len(impacts) > 0:
                level = np.uint8(max(np.rint(multiple), 1.0))
                impacts[posting] = level
            else:
                level = np.uint8(max(np.ceil(multiple), 1.0))
            row = dense_row[term]
            if row >= 0:
                dense[row, block] = max(dense[row, block], level)
            elif block == last[term]:
                list_levels[entries[term]] = max(list_levels[entries[term]], level)
            else:
                entries[term] += 1
                last[term] = block
                list_blocks[entries[term]] = block
                list_levels[entries[term]] = level
