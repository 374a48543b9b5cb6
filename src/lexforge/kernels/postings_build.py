"""Compiled construction of the bounds of `lexforge.kernels.postings`."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True)
def count_blocks(term_offsets, rows, block_size):
    """The number of blocks that hold each term, `[V] int64`.

    Args:
        term_offsets: `[V + 1]` of a CSC matrix, rows ascending within a term.
        rows: `[P]`.
        block_size: Documents a block.
    """
    counts = np.zeros(len(term_offsets) - 1, np.int64)
    for term in range(len(counts)):
        last = -1
        for posting in range(term_offsets[term], term_offsets[term + 1]):
            block = np.int64(rows[posting]) // block_size
            counts[term] += block != last
            last = block
    return counts


@numba.njit(cache=True)
def fill_bounds(
    term_offsets, rows, levels, block_size, dense_row, list_starts, dense, list_blocks, list_levels
):
    """Write each term's largest level in every block, as a row over all blocks or as a list.

    Args:
        term_offsets: `[V + 1]` of a CSC matrix, rows ascending within a term.
        rows: `[P]`.
        levels: `[P] uint8`, quantised weights, rounded up.
        block_size: Documents a block.
        dense_row: `[V]` row of a frequent term, -1 for the others.
        list_starts: `[V + 1]` into the lists of the others.
        dense: `[R, B]` zeros, filled.
        list_blocks: `[L]`, filled.
        list_levels: `[L]` zeros, filled.
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
