"""The compiled construction of the bounds that `lexforge.kernels.postings` describes."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True)
def count_blocks(term_offsets, rows, block_size):
    """Count the blocks that hold each term.

    Args:
        term_offsets: `[V + 1]`, where the postings of each term start in a CSC matrix.
        rows: `[P]`, the row (document) of each posting, ascending within a term.
        block_size: Documents per block.

    Returns:
        `[V] int64`.
    """
    counts = np.zeros(len(term_offsets) - 1, np.int64)
    for term in range(len(counts)):
        last = -1
        for posting in range(term_offsets[term], term_offsets[term + 1]):
            block = np.int64(rows[posting]) // block_size
            counts[term] += block != last  # rows ascend, so a block is new if it differs from the last one
            last = block
    return counts


@numba.njit(cache=True)
def fill_bounds(
    term_offsets, rows, levels, block_size, dense_row, list_starts, dense, list_blocks, list_levels
):
    """Write the largest level of each term in every block, into a row over all blocks or into a list.

    Args:
        term_offsets: `[V + 1]`, where the postings of each term start in a CSC matrix.
        rows: `[P]`, the row (document) of each posting, ascending within a term.
        levels: `[P] uint8`, the weights as multiples of the term's scale, rounded up.
        block_size: Documents per block.
        dense_row: `[V]`, the row of each frequent term in `dense`, -1 for the other terms.
        list_starts: `[V + 1]`, where the list of each other term starts.
        dense: `[R, B] uint8`, zeros at first; it receives the levels of frequent terms.
        list_blocks: `[L]`, receives the blocks of the other terms.
        list_levels: `[L] uint8`, zeros at first; it receives the levels of the other terms.
    """
    for term in range(len(term_offsets) - 1):
        entry, last, row = list_starts[term] - 1, -1, dense_row[term]
        for posting in range(term_offsets[term], term_offsets[term + 1]):
            block = np.int64(rows[posting]) // block_size
            if row >= 0:
                dense[row, block] = max(dense[row, block], levels[posting])
                continue
            if block != last:
                entry += 1
                list_blocks[entry] = block
                last = block
            list_levels[entry] = max(list_levels[entry], levels[posting])
