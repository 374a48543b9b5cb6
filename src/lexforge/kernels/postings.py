"""Exact search for the k best sparse vectors.

Scores are float32 sums, and of documents of equal score the one with the lower position comes first.

Layout. Similar documents stand beside each other and are divided into blocks of a few documents. A segment
has up to 65,536 blocks. For each of its terms it has upper bounds of the term's weights in the blocks, in 8
bits: a row over all blocks for a frequent term, and a list of the blocks that hold it for any other term. The
documents themselves are stored in the same order, term by term, for the exact scores.

Search. First the bounds of a query in all blocks are added up, one row at a time, which uses the cache and
the vector registers well. Two sweeps follow. The first scores the documents in the blocks with the 1.1 k to
1.5 k highest bounds. The second scores every other block whose bound reaches the k-th score found so far. In
later segments it asks for more: for the k-th score that the first segments let expect of all. If that was too
much, the query is searched again without it.
This is block-max pruning (Mallia, Suel and Tonellotto, "Faster learned sparse retrieval with block-max
pruning", SIGIR 2024), but without its approximations and its queue of blocks, with smaller blocks and with
float32 weights.

If many hits are wanted, few blocks can be left out. All documents are searched instead, with their postings
arranged by term (`lexforge.kernels.postings_exhaustive`), if the corpus is small enough to keep them arranged
from call to call, or if there are so many queries that to arrange them for one call pays.

Exactness. A score is the sum of `query weight * document weight` over the query's terms in ascending order.
Each operation is rounded to float32, and the blocks, their order and the number of threads do not change it.
A bound is rounded up at every step, so that no block with a hit is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lexforge.kernels.document_order import similar_neighbours
from lexforge.kernels.parallel import threads
from lexforge.kernels.postings_build import fill_bounds, measure_terms, reorder
from lexforge.kernels.postings_exhaustive import Arranged, arrange, search_exhaustively
from lexforge.kernels.postings_layout import (
    Postings,
    check_terms,
    documents_of,
    frozen,
    of_arrays,
    starts_of,
)
from lexforge.kernels.postings_search import search, unpack

Impl = Literal["auto", "pruned", "exhaustive", "reference"]

# Documents per block, up to a number of documents. Larger blocks mean fewer bounds, but looser ones, and in a
# large corpus neighbours are more similar. Milliseconds per query at k 10, 100 and 1,000, of 208 queries over
# simulated documents on two threads of an AMD EPYC (family 25, model 17):
#     documents   one per block      two                four
#     262,144     .36, .45, .96      .26, .47, 1.47     .36, 1.06, 3.44
#     1,048,576   1.45, 1.54, 2.25   1.00, 1.21, 2.73   .85, 1.83, 5.97
#     4,194,304                      3.72, 4.20, 6.85   2.46, 3.93, 10.8
BLOCK_SIZES = {131_072: 1, 2_097_152: 2}
LARGE_BLOCK = 4  # beyond these
MOST_BLOCKS = 65536  # per segment: the number of a block within it is stored in 16 bits
# A large corpus gets shorter segments: the k-th score of the first ones prunes those after them, and bounds
# of a short one stay in the cache. With blocks of one document a single segment is faster.
SHORT_SEGMENT = 32_768  # documents
STRETCHES = 4  # of a segment's blocks, which the threads share while the bounds are filled
LEVELS = 255  # the number of levels of a bound
DENSE = 8  # a term in more than an eighth of a segment's blocks has a row, which is added faster than a list
CHUNKS_PER_THREAD = 8  # chunks of queries per thread, so that no thread waits long for the others
# The exhaustive search is faster for many hits. Measured like the blocks: both searches take about 1 ns per
# document and query; the pruned one takes another .2 to .8 us per hit for blocks of one document, 1.2 to 3 us
# for two and 3 to 11 us for four, and the exhaustive one .1 us, and 500 ns per document and call to arrange
# the postings. Kept ones are read from memory, and take 1.5 ns per document: there it wins from 250 hits of
# 43,113 documents on.
KEPT_HIT_COST = 150
TILE = 4096  # documents that the exhaustive search scores at a time; their scores take 16 KiB
MOST_KEPT = 2**23  # postings that may be kept arranged by term, in about 50 MB


def segments_of(
    documents: sparse.csr_matrix | sparse.csr_array,
    block_size: int | None = None,
    segment_blocks: int | None = None,
) -> Iterator[Postings]:
    """Build the postings of a document matrix, segment by segment; `join_postings` makes one of them.

    Args:
        documents: CSR `[N, V] float32`, canonical (sorted, without duplicates), every stored weight > 0.
        block_size: Documents per block, at least 1. None is `block_size_for` the documents.
        segment_blocks: Blocks per segment, from 1 to 65,536. None is 65,536 with one document per block, and
            those of 32,768 documents with more.

    Yields:
        The postings of each segment; one without documents if the matrix has none.
    """
    if block_size is None:
        block_size = block_size_for(documents.shape[0])
    if segment_blocks is None:
        segment_blocks = MOST_BLOCKS if block_size == 1 else max(1, SHORT_SEGMENT // block_size)
    matrix, size = sparse.csr_array(documents), block_size * segment_blocks
    for first in range(0, max(1, matrix.shape[0]), size):
        yield _segment(_rows(matrix, first, size), block_size)


def block_size_for(documents: int) -> int:
    """Return the documents per block that suit a number of documents."""
    return next((size for most, size in BLOCK_SIZES.items() if documents <= most), LARGE_BLOCK)


def _rows(matrix: sparse.csr_array, first: int, size: int) -> sparse.csr_array:
    """Return some rows of a CSR matrix without a copy of their weights."""
    offsets = matrix.indptr[first : first + size + 1]
    span, shape = slice(offsets[0], offsets[-1]), (len(offsets) - 1, matrix.shape[1])
    return sparse.csr_array((matrix.data[span], matrix.indices[span], offsets - offsets[0]), shape=shape)


def _segment(documents: sparse.csr_array, block_size: int) -> Postings:
    """Build the postings of one segment, whose positions count from its first document.

    Args:
        documents: CSR `[N, V] float32`, as for `segments_of`.
        block_size: Documents per block.

    Returns:
        The postings.
    """
    order = similar_neighbours(documents, block_size)  # [N]
    count, width = documents.shape
    blocks = -(-count // block_size)
    offsets = starts_of(np.diff(documents.indptr)[order])
    terms = np.empty(documents.nnz, np.uint16 if width <= 65536 else np.uint32)
    weights: NDArray = np.empty(documents.nnz, np.float32)
    reorder(documents.indptr, documents.indices, documents.data, order, offsets, terms, weights)
    stretches = min(STRETCHES, max(blocks, 1))
    edges = np.minimum(np.arange(stretches + 1) * blocks // stretches * block_size, count)
    largest_each, blocks_each = measure_terms(
        offsets, terms, weights, block_size, edges, width
    )  # [S, V] each
    largest, blocks_of_term = largest_each.max(axis=0), blocks_each.sum(axis=0)  # [V] each
    # The scale of a term is its largest weight by 255, rounded up, so that no level exceeds 255.
    upwards = np.nextafter(largest / np.float32(LEVELS), np.float32(np.inf))
    scales = np.where(largest > 0, upwards, np.float32(0))

    # A frequent term gets a row over all blocks, any other term a list of the blocks that hold it.
    frequent = blocks_of_term * DENSE > blocks
    rows = np.where(frequent, np.cumsum(frequent) - 1, -1)
    dense = np.zeros((int(frequent.sum()), blocks), np.uint8)
    list_starts = starts_of(np.where(frequent, 0, blocks_of_term))
    list_blocks, list_levels = np.empty(list_starts[-1], np.uint16), np.empty(list_starts[-1], np.uint8)
    # Where the part of each list begins that is of a stretch; a frequent term has no list.
    parts = list_starts[:-1] + np.cumsum(blocks_each, axis=0) - blocks_each  # [S, V]
    bounds = (rows, parts, dense, list_blocks, list_levels)
    fill_bounds(offsets, terms, weights, block_size, edges, scales, *bounds)
    return of_arrays(
        block_size,
        positions=order,
        starts=[0, count],
        first_blocks=[0, blocks],
        offsets=offsets,
        terms=terms,
        weights=weights,
        scales=scales[None],
        dense_starts=np.where(frequent, rows * blocks, -1)[None],
        dense=dense.reshape(-1),
        list_starts=list_starts[None],
        list_blocks=list_blocks,
        list_levels=list_levels,
    )


class KeptArrangement:
    """Keeps the postings of a small corpus arranged by term from one call of `top_k` to the next."""

    def __init__(self) -> None:
        self._kept: tuple[Postings, Arranged] | None = None

    def of(self, postings: Postings) -> Arranged:
        """Return the arranged postings; they are arranged anew if they are not those of the last call."""
        kept = self._kept  # read once, because another thread may replace it by those of its own postings
        if kept is None or kept[0] is not postings:
            self._kept = kept = (postings, _arranged(postings, 0, postings.num_documents))
        return kept[1]


def top_k(
    queries: sparse.csr_matrix | sparse.csr_array,
    postings: Postings,
    k: int,
    impl: Impl = "auto",
    keeper: KeptArrangement | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Find the k documents of highest score for each query; a document with score 0 is never a hit.

    Args:
        queries: CSR `[Q, V] float32`, canonical, every stored weight > 0.
        postings: The postings of the documents.
        k: Number of hits wanted per query, at least 1.
        impl: `pruned` and `exhaustive` are compiled and run on `numba.get_num_threads()` threads, and on one
            in a forked process (`lexforge.kernels.parallel`). Both divide the queries among the threads, and
            with fewer queries than threads also the documents.
            `auto` takes the one that is expected to be faster. `reference` is numpy, for tests.
        keeper: Keeps what the exhaustive search arranges for the next call, unless the corpus is large. None
            keeps nothing.

    Returns:
        Positions `[Q, K] int64` and scores `[Q, K] float32` with `K = min(k, N)`, by descending score and
        then ascending position, and the number of hits in each row `[Q] int64`. What follows the hits of a
        row has no meaning.

    Raises:
        ValueError: If `impl` is unknown.
    """
    if impl not in get_args(Impl):
        raise ValueError(f"impl must be one of {', '.join(map(repr, get_args(Impl)))}; received {impl!r}")
    rows, width = queries.shape[0], min(k, postings.num_documents)
    if width == 0 or queries.nnz == 0:
        return (
            np.zeros((rows, width), np.int64),
            np.zeros((rows, width), np.float32),
            np.zeros(rows, np.int64),
        )
    if impl == "reference":
        return _search_reference(queries, documents_of(postings), width)
    if len(postings.terms) > MOST_KEPT:
        keeper = None
    if impl == "auto":
        kept = keeper is not None
        pays = exhaustive_pays(rows, width, postings.num_documents, postings.block_size, kept=kept)
        impl = "exhaustive" if pays else "pruned"
    # The compiled functions take int64 and read-only arrays, so that each is compiled for one set of types.
    workers = threads()
    chunk = -(-rows // (CHUNKS_PER_THREAD * workers))
    offsets, terms = frozen(queries.indptr, np.int64), frozen(queries.indices, np.int64)
    asked = (offsets, terms, frozen(queries.data, np.float32))
    ranges = -(-workers // rows)
    if impl == "exhaustive":
        parts = _arranged_anew(postings, workers) if keeper is None else [keeper.of(postings)]
        return unpack(search_exhaustively(postings, asked, width, chunk, ranges, parts), width)
    hits = np.empty((rows, ranges, width), np.int64)
    search(postings, asked, chunk, hits)
    return unpack(hits, width)


def _arranged_anew(postings: Postings, together: int) -> Iterator[Arranged]:
    """Yield the arranged postings of a few tiles at a time, so that they need little memory."""
    size = together * TILE
    for first in range(0, postings.num_documents, size):
        yield _arranged(postings, first, min(first + size, postings.num_documents))


def _arranged(postings: Postings, first: int, last: int) -> Arranged:
    """Arrange the documents `first` to `last - 1`, whose terms may come unchecked from a file."""
    check_terms(postings.terms[postings.offsets[first] : postings.offsets[last]], postings.num_terms)
    return arrange(postings, first, last, TILE)


def exhaustive_pays(rows: int, k: int, documents: int, block_size: int, *, kept: bool) -> bool:
    """Return whether the exhaustive search is expected to be faster than the pruned one.

    Args:
        rows: Number of queries in the call, at least 1.
        k: Number of hits wanted per query.
        documents: Number of documents.
        block_size: Documents per block.
        kept: Whether the postings are arranged once for all calls.
    """
    return block_size**2 * k * (KEPT_HIT_COST if kept else rows) > documents


def _search_reference(
    queries: sparse.csr_matrix | sparse.csr_array, documents: sparse.csr_array, width: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Search by the definition: add up all scores of a query in a float32 array and sort them stably."""
    positions = np.zeros((queries.shape[0], width), np.int64)
    scores = np.zeros((queries.shape[0], width), np.float32)
    by_term = documents.tocsc()
    for row, (first, last) in enumerate(pairwise(queries.indptr)):
        total = np.zeros(documents.shape[0], np.float32)  # [N]
        for term, weight in zip(queries.indices[first:last], queries.data[first:last], strict=True):
            span = slice(by_term.indptr[term], by_term.indptr[term + 1])
            total[by_term.indices[span]] += np.float32(weight) * by_term.data[span]
        positions[row] = np.argsort(-total, kind="stable")[:width]
        scores[row] = total[positions[row]]
    return positions, scores, np.count_nonzero(scores, axis=1)
