"""The compiled construction of the arrays that `lexforge.kernels.postings` describes.

Everything is read document by document in the stored order, in which blocks ascend. So the last block of each
term says whether a posting opens a new entry of its list, and no copy of the postings by term is needed. The
blocks are divided into a few stretches, which the threads share; each stretch has a part of every list.
"""

from __future__ import annotations

import numba
import numpy as np

from lexforge.kernels.parallel import inner, parallel


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


@parallel
def measure_terms(offsets, terms, weights, block_size, edges, width):
    """Find the largest weight of each term and the number of blocks that hold it, in stretches of blocks.

    Args:
        offsets: `[N + 1] int64`, the place of each document's first posting; documents in the stored order.
        terms: `[P]`, the term of each posting.
        weights: `[P] float32`, > 0.
        block_size: Documents per block.
        edges: `[S + 1] int64`, the first document of each stretch, where a block begins, and N.
        width: The number of terms V.

    Returns:
        `[S, V] float32`, 0 for a term that no document of the stretch holds, and `[S, V] int64`.
    """
    largest = np.zeros((len(edges) - 1, width), np.float32)
    counts = np.zeros((len(edges) - 1, width), np.int64)
    for stretch in numba.prange(len(edges) - 1):
        _measure(
            offsets,
            terms,
            weights,
            block_size,
            edges[stretch],
            edges[stretch + 1],
            largest[stretch],
            counts[stretch],
        )
    return largest, counts


@inner
def _measure(offsets, terms, weights, block_size, first, last, largest, counts):
    """Measure the documents `first` to `last - 1`."""
    held = np.full(len(counts), -1)  # the last block of each term
    for document in range(first, last):
        block = document // block_size
        for posting in range(offsets[document], offsets[document + 1]):
            term = terms[posting]
            largest[term] = max(largest[term], weights[posting])
            counts[term] += block != held[term]
            held[term] = block


@parallel
def fill_bounds(
    offsets,
    terms,
    weights,
    block_size,
    edges,
    scales,
    dense_row,
    list_starts,
    dense,
    list_blocks,
    list_levels,
):
    """Write the largest level of each term in every block, into a row over all blocks or into a list.

    A level is the weight as a multiple of the term's scale, from 1 to 255. It is rounded up, because a bound
    must not be below its weight.

    Args:
        offsets: `[N + 1] int64`, the place of each document's first posting; documents in the stored order.
        terms: `[P]`, the term of each posting.
        weights: `[P] float32`, > 0.
        block_size: Documents per block.
        edges: `[S + 1] int64`, the first document of each stretch, where a block begins, and N.
        scales: `[V] float32`, the scale of each term.
        dense_row: `[V]`, the row of each frequent term in `dense`, -1 for the other terms.
        list_starts: `[S, V] int64`, where the part of each other term's list starts that is of the stretch.
        dense: `[R, B] uint8`, zeros at first; it receives the levels of frequent terms.
        list_blocks: `[L] uint16`, receives the blocks of the other terms.
        list_levels: `[L] uint8`, receives the levels of the other terms.
    """
    for stretch in numba.prange(len(edges) - 1):
        documents, entries = (edges[stretch], edges[stretch + 1]), list_starts[stretch] - 1
        postings, targets = (offsets, terms, weights), (dense, list_blocks, list_levels)
        _fill(postings, block_size, documents, scales, dense_row, entries, targets)


@inner
def _fill(postings, block_size, documents, scales, dense_row, entries, targets):
    """Write the levels of some documents; `entries` has the last entry of each list that was written."""
    offsets, terms, weights = postings
    dense, list_blocks, list_levels = targets
    last = np.full(len(scales), -1)  # the block of that entry
    for document in range(documents[0], documents[1]):
        block = document // block_size
        for posting in range(offsets[document], offsets[document + 1]):
            term = np.int64(terms[posting])
            # The division is done in float64, which is exact enough for its result to be rounded up.
            multiple = np.float64(weights[posting]) / np.float64(scales[term])
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
