"""Exact top-k over sparse vectors: scores are float32 sums, ties go to the lower document position.

Layout. Similar documents are put beside each other and cut into blocks of a few documents. A segment of up to
65,536 blocks carries, for each term, an upper bound of its weights in every block: 8 bits, a row over all
blocks for a frequent term, a list of the blocks that hold it for the others. The documents themselves lie in
the same order, term by term, for the exact scores.

Search. A query's bounds of all blocks are summed first, a row at a time, in cache and in vector registers.
Then two sweeps: the blocks of the 1.5 k to 2 k highest bounds are scored, and with the k-th score found in
them every other block whose bound reaches it (block-max pruning: Mallia, Suel and Tonellotto, "Faster learned
sparse retrieval with block-max pruning", SIGIR 2024; here without its approximations, with smaller blocks,
without a queue of blocks, and with float32 weights).

Where many hits are wanted, few blocks can be left out; if there are many queries too, all documents are
searched, turned into postings by term for the call (`lexforge.kernels.postings_exhaustive`).

Exactness. A score is the sum over the query's terms in ascending order of `query weight * document weight`,
each operation rounded to float32, whatever the blocks, their order and the number of threads. A bound is
rounded up at every step, so no block that holds a hit is left out.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, cast, get_args

import numba
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lexforge.kernels.document_order import similar_neighbours
from lexforge.kernels.postings_build import count_blocks, fill_bounds
from lexforge.kernels.postings_exhaustive import search_exhaustively
from lexforge.kernels.postings_layout import (
    Postings,
    documents_of,
    frozen,
    join_postings,
    of_arrays,
    starts_of,
)
from lexforge.kernels.postings_search import search, unpack

Impacts = Literal["float32", "uint8"]
Impl = Literal["auto", "pruned", "exhaustive", "reference"]

# Documents a block: a larger one means fewer bounds, but looser ones. In a large corpus neighbours are more
# alike (measured at 43,688 and 349,504 documents, the latter jittered copies).
SMALL_BLOCK, LARGE_BLOCK, LARGE_CORPUS = 2, 4, 131_072
SEGMENT_BLOCKS = 65536  # a block of a segment is named by 16 bits
LEVELS = 255  # of a bound, and of an 8-bit impact
DENSE = 8  # a term in more than an eighth of a segment's blocks has a row: it is summed faster than a list
CHUNKS_PER_THREAD = 8  # query chunks, to balance threads
# The exhaustive search pays once HIT_COST * k > N * (1 + TURN_COST / Q). Fitted to where both took equally
# long (one thread): of 43,688 documents k = 50 for 875 queries and 250 for 128, of 349,504 k = 200 and 1,000.
# Pruning took 1 to 2 ns a document and 1 to 3 us a hit; the other 2 ns a document and .9 us / Q to turn it.
HIT_COST, TURN_COST = 3000, 2000
TILE = 4096  # documents of the exhaustive search at a time: their scores take 16 KiB


def build_postings(
    documents: sparse.csr_matrix | sparse.csr_array,
    block_size: int | None = None,
    segment_blocks: int = SEGMENT_BLOCKS,
    impacts: Impacts = "float32",
) -> Postings:
    """Postings of a document matrix.

    Args:
        documents: CSR `[N, V] float32`, canonical (sorted, no duplicates), every stored weight > 0.
        block_size: Documents a block, at least 1; by default 2, and 4 beyond 131,072 documents.
        segment_blocks: Blocks a segment, 1 to 65,536.
        impacts: `float32` keeps the weights; `uint8` rounds them to the nearest of 255 multiples of the
            term's scale in the segment, but not to 0.

    Returns:
        The postings.

    Raises:
        ValueError: An argument outside its range.
    """
    if block_size is None:
        block_size = LARGE_BLOCK if documents.shape[0] > LARGE_CORPUS else SMALL_BLOCK
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; it must be at least 1")
    if not 1 <= segment_blocks <= SEGMENT_BLOCKS:
        raise ValueError(f"segment_blocks is {segment_blocks}; it must be 1 to {SEGMENT_BLOCKS}")
    check_impacts(impacts)
    bounds = range(0, max(1, documents.shape[0]), block_size * segment_blocks)
    matrix = sparse.csr_array(documents)
    segments = [matrix[first : first + block_size * segment_blocks] for first in bounds]
    return join_postings([_segment(segment, block_size, impacts) for segment in segments])


def _segment(documents: sparse.csr_array, block_size: int, impacts: Impacts) -> Postings:
    """One segment's postings; positions count from its first document."""
    order = similar_neighbours(documents, block_size)
    stored = documents[order]
    by_term = stored.tocsc()
    count, width = documents.shape
    blocks = -(-count // block_size)
    held = np.diff(by_term.indptr) > 0
    scales = np.zeros(width, np.float32)
    if held.any():
        largest = np.maximum.reduceat(by_term.data, by_term.indptr[:-1][held])
        scales[held] = np.nextafter(largest / np.float32(LEVELS), np.float32(np.inf))
    weights: NDArray = stored.data
    rounding: np.ufunc = np.ceil  # up: a bound
    if impacts == "uint8":
        rounding = np.rint
        weights = _levels(weights, scales[stored.indices], np.rint)
    levels = _levels(by_term.data, np.repeat(scales, np.diff(by_term.indptr)), rounding)

    blocks_of_term = count_blocks(by_term.indptr, by_term.indices, block_size)
    frequent = blocks_of_term * DENSE > blocks
    rows = np.where(frequent, np.cumsum(frequent) - 1, -1)
    dense = np.zeros((int(frequent.sum()), blocks), np.uint8)
    list_starts = starts_of(np.where(frequent, 0, blocks_of_term))
    list_blocks = np.empty(list_starts[-1], np.uint16)
    list_levels = np.zeros(list_starts[-1], np.uint8)
    bounds = (rows, list_starts, dense, list_blocks, list_levels)
    fill_bounds(by_term.indptr, by_term.indices, levels, block_size, *bounds)
    return of_arrays(
        block_size,
        positions=order,
        starts=[0, count],
        first_blocks=[0, blocks],
        offsets=stored.indptr,
        terms=stored.indices.astype(np.uint16 if width <= 65536 else np.uint32),
        weights=weights,
        scales=scales[None],
        dense_starts=np.where(frequent, rows * blocks, -1)[None],
        dense=dense.reshape(-1),
        list_starts=list_starts[None],
        list_blocks=list_blocks,
        list_levels=list_levels,
    )


def _levels(weights: NDArray, scales: NDArray, rounding: np.ufunc) -> NDArray[np.uint8]:
    """Weights as multiples of their scales, 1 to 255; divided in float64: exact enough to round up."""
    return np.maximum(rounding(weights / scales.astype(np.float64)), 1).astype(np.uint8)


def check_impacts(impacts: str) -> Impacts:
    """The kind of impacts, if there is one of the name."""
    if impacts not in ("float32", "uint8"):
        raise ValueError(f"impacts is {impacts!r}; allowed are 'float32' and 'uint8'")
    return cast(Impacts, impacts)


def top_k(
    queries: sparse.csr_matrix | sparse.csr_array,
    postings: Postings,
    k: int,
    impl: Impl = "auto",
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """The k documents of highest score for each query; a document with score 0 is no hit.

    Args:
        queries: CSR `[Q, V] float32`, canonical, every stored weight > 0.
        postings: The documents.
        k: Hits wanted, at least 1.
        impl: `pruned` and `exhaustive` are compiled and run on `numba.get_num_threads()` threads, over
            queries, and `pruned` over ranges of blocks where there are fewer queries than threads; `auto` is
            that of them expected to be faster; `reference` is numpy, for tests.

    Returns:
        Positions `[Q, K] int64` and scores `[Q, K] float32` with `K = min(k, N)`, by descending score, then
        ascending position, and the number of hits in each row `[Q] int64`; what stands behind them is void.
    """
    if impl not in get_args(Impl):
        raise ValueError(f"impl is {impl!r}; allowed are {', '.join(map(repr, get_args(Impl)))}")
    rows, width = queries.shape[0], min(k, postings.num_documents)
    if width == 0 or queries.nnz == 0:
        return (
            np.zeros((rows, width), np.int64),
            np.zeros((rows, width), np.float32),
            np.zeros(rows, np.int64),
        )
    if impl == "reference":
        return _search_reference(queries, documents_of(postings), width)
    if impl == "auto":
        impl = "exhaustive" if exhaustive_pays(rows, width, postings.num_documents) else "pruned"
    threads = numba.get_num_threads()
    chunk = -(-rows // (CHUNKS_PER_THREAD * threads))
    offsets, terms = frozen(queries.indptr, np.int64), frozen(queries.indices, np.int64)
    asked = (offsets, terms, frozen(queries.data, np.float32))
    if impl == "exhaustive":
        return unpack(search_exhaustively(postings, asked, width, TILE, threads, chunk)[:, :width], width)
    hits = np.empty((rows, -(-threads // rows), width), np.int64)
    search(postings, asked, chunk, hits)
    return unpack(hits, width)


def exhaustive_pays(rows: int, k: int, documents: int) -> bool:
    """Whether the exhaustive search of a call is expected to be faster than the pruned one.

    Args:
        rows: Queries, at least 1.
        k: Hits wanted of each.
        documents: Number of documents.
    """
    return HIT_COST * k > documents * (1 + TURN_COST / rows)


def _search_reference(
    queries: sparse.csr_matrix | sparse.csr_array, documents: sparse.csr_array, width: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """The definition: every score of a query in one float32 array, then a stable sort."""
    positions = np.zeros((queries.shape[0], width), np.int64)
    scores = np.zeros((queries.shape[0], width), np.float32)
    by_term = documents.tocsc()
    for row, (first, last) in enumerate(pairwise(queries.indptr)):
        total = np.zeros(documents.shape[0], np.float32)
        for term, weight in zip(queries.indices[first:last], queries.data[first:last], strict=True):
            span = slice(by_term.indptr[term], by_term.indptr[term + 1])
            total[by_term.indices[span]] += np.float32(weight) * by_term.data[span]
        positions[row] = np.argsort(-total, kind="stable")[:width]
        scores[row] = total[positions[row]]
    return positions, scores, np.count_nonzero(scores, axis=1)
