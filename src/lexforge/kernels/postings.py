"""Exact top-k over an inverted index: scores are float32 sums, ties go to the lower document position.

Layout. Documents are cut into blocks; within a block the postings lie by term, each the document's place in
its block (uint16) and its weight (float32). `offsets[b, t] : offsets[b, t + 1]` are the postings of term t in
block b. One block's accumulator (block size x 4 bytes) stays in the second-level cache, its postings
in the last-level cache, while a whole chunk of queries passes over the block.

Exactness. A score is the sum over the query's terms in ascending order of `query weight * document weight`,
each operation rounded to float32, whatever the block size and the number of threads.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

BLOCK_SIZE = 32768  # documents: an accumulator of 128 KiB
MAX_BLOCK_SIZE = 65536  # places in a block are uint16
SCAN = 64  # accumulator entries looked at together
CHUNKS_PER_THREAD = 4  # query chunks: enough to balance threads, long enough to reuse a block's postings


class Postings(NamedTuple):
    """An inverted index as four flat arrays, read-only.

    Args:
        places: `[P] uint16`, the document's place in its block.
        weights: `[P] float32`, > 0.
        offsets: `[blocks, terms + 1] int64` into the two above.
        starts: `[blocks + 1] int64`, position of each block's first document; the last is their number.
    """

    places: NDArray[np.uint16]
    weights: NDArray[np.float32]
    offsets: NDArray[np.int64]
    starts: NDArray[np.int64]

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return int(self.starts[-1])

    @property
    def num_terms(self) -> int:
        """Number of terms (columns)."""
        return self.offsets.shape[1] - 1


def _frozen(array: NDArray, dtype: type) -> NDArray:
    """A contiguous read-only view: one compiled kernel serves arrays in memory and memory-mapped ones."""
    view: NDArray = np.ascontiguousarray(array, dtype=dtype).view()
    view.setflags(write=False)
    return view


def build_postings(documents: sparse.csr_matrix | sparse.csr_array, block_size: int = BLOCK_SIZE) -> Postings:
    """Postings of a document matrix.

    Args:
        documents: CSR `[N, V] float32`, canonical (sorted, no duplicates), every stored weight > 0.
        block_size: Documents a block, 1 to 65,536.

    Returns:
        The postings, in blocks of `block_size` documents.
    """
    if not 1 <= block_size <= MAX_BLOCK_SIZE:
        raise ValueError(f"block_size is {block_size}; it must be 1 to {MAX_BLOCK_SIZE}")
    count, terms = documents.shape
    starts = np.append(np.arange(0, count, block_size), count)
    offsets = np.zeros((len(starts) - 1, terms + 1), np.int64)
    places = np.empty(documents.nnz, np.uint16)
    weights = np.empty(documents.nnz, np.float32)
    for block, (first, last) in enumerate(pairwise(starts)):
        by_term = documents[first:last].tocsc()
        begin, end = documents.indptr[first], documents.indptr[last]
        places[begin:end] = by_term.indices
        weights[begin:end] = by_term.data
        offsets[block] = by_term.indptr + np.int64(begin)
    return Postings(
        _frozen(places, np.uint16),
        _frozen(weights, np.float32),
        _frozen(offsets, np.int64),
        _frozen(starts, np.int64),
    )


def join_postings(parts: list[Postings]) -> Postings:
    """The postings of the parts' documents one after the other; at least one part, equal numbers of terms."""
    parts = [part for part in parts if part.num_documents] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    postings = np.cumsum([0] + [len(part.places) for part in parts])
    documents = np.cumsum([0] + [part.num_documents for part in parts])
    starts = [part.starts[:-1] + first for part, first in zip(parts, documents, strict=False)]
    return Postings(
        _frozen(np.concatenate([part.places for part in parts]), np.uint16),
        _frozen(np.concatenate([part.weights for part in parts]), np.float32),
        _frozen(
            np.concatenate([part.offsets + first for part, first in zip(parts, postings, strict=False)]),
            np.int64,
        ),
        _frozen(np.append(np.concatenate(starts), documents[-1]), np.int64),
    )


def top_k(
    queries: sparse.csr_matrix | sparse.csr_array,
    postings: Postings,
    k: int,
    impl: Literal["auto", "reference", "numba"] = "auto",
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """The k documents of highest score for each query; a document with score 0 is no hit.

    Args:
        queries: CSR `[Q, V] float32`, canonical, every stored weight > 0.
        postings: The documents.
        k: Hits wanted, at least 1.
        impl: `numba` is compiled and runs on `numba.get_num_threads()` threads; `reference` is numpy, for
            tests; `auto` is `numba`.

    Returns:
        Positions `[Q, K] int64` and scores `[Q, K] float32` with `K = min(k, N)`, by descending score, then
        ascending position, and the number of hits in each row `[Q] int64`; what stands behind them is void.
    """
    if impl not in ("auto", "reference", "numba"):
        raise ValueError(f"impl is {impl!r}; allowed are 'auto', 'reference' and 'numba'")
    width = min(k, postings.num_documents)
    positions = np.zeros((queries.shape[0], width), np.int64)
    scores = np.zeros((queries.shape[0], width), np.float32)
    counts = np.zeros(queries.shape[0], np.int64)
    if width == 0 or queries.nnz == 0:
        return positions, scores, counts
    if impl == "reference":
        _search_reference(queries, postings, positions, scores, counts)
    else:
        chunk = -(-queries.shape[0] // (CHUNKS_PER_THREAD * numba.get_num_threads()))
        _search(
            _frozen(queries.indptr, np.int64),
            _frozen(queries.indices, np.int64),
            _frozen(queries.data, np.float32),
            *postings,
            positions,
            scores,
            counts,
            chunk,
        )
    return positions, scores, counts


def _search_reference(
    queries: sparse.csr_matrix | sparse.csr_array,
    postings: Postings,
    positions: NDArray[np.int64],
    scores: NDArray[np.float32],
    counts: NDArray[np.int64],
) -> None:
    """The definition: every score of a query in one float32 array, then a stable sort."""
    for row in range(queries.shape[0]):
        total = np.zeros(postings.num_documents, np.float32)
        for entry in range(queries.indptr[row], queries.indptr[row + 1]):
            term, weight = queries.indices[entry], np.float32(queries.data[entry])
            for block, first in enumerate(postings.starts[:-1]):
                span = slice(postings.offsets[block, term], postings.offsets[block, term + 1])
                total[first + postings.places[span].astype(np.int64)] += weight * postings.weights[span]
        order = np.argsort(-total, kind="stable")[: positions.shape[1]]
        counts[row] = np.count_nonzero(total[order])
        positions[row], scores[row] = order, total[order]


@numba.njit(cache=True)
def _sift_down(scores, positions, size, hole):  # type: ignore[no-untyped-def]
    """Restore the heap below `hole`; its root is the worst hit: lowest score, then highest position."""
    score, position = scores[hole], positions[hole]
    while 2 * hole + 1 < size:
        child = 2 * hole + 1
        other = child + 1
        if other < size and (
            scores[other] < scores[child]
            or (scores[other] == scores[child] and positions[other] > positions[child])
        ):
            child = other
        if score < scores[child] or (score == scores[child] and position > positions[child]):
            break
        scores[hole], positions[hole] = scores[child], positions[child]
        hole = child
    scores[hole], positions[hole] = score, position


@numba.njit(cache=True)
def _collect(accumulator, size, first, scores, positions, count):  # type: ignore[no-untyped-def]
    """Move a block's hits into the query's heap and clear the accumulator; returns the heap's new size.

    Documents come in ascending order, so one that only equals the worst hit kept is worse than it.
    """
    k = len(scores)
    threshold = scores[0] if count == k else np.float32(0)
    for begin in range(0, size, SCAN):
        end = min(begin + SCAN, size)
        above = 0
        for place in range(begin, end):
            above += accumulator[place] > threshold
        if above > 0:
            for place in range(begin, end):
                score = accumulator[place]
                if score <= threshold:
                    continue
                if count < k:
                    scores[count], positions[count] = score, first + place
                    count += 1
                    if count == k:
                        for hole in range(k // 2 - 1, -1, -1):
                            _sift_down(scores, positions, k, hole)
                        threshold = scores[0]
                else:
                    scores[0], positions[0] = score, first + place
                    _sift_down(scores, positions, k, 0)
                    threshold = scores[0]
        accumulator[begin:end] = 0
    return count


@numba.njit(cache=True)
def _sort_hits(scores, positions, count):  # type: ignore[no-untyped-def]
    """Heap sort, best first: the worst of what remains goes to the end."""
    for hole in range(count // 2 - 1, -1, -1):
        _sift_down(scores, positions, count, hole)
    for last in range(count - 1, 0, -1):
        scores[0], scores[last] = scores[last], scores[0]
        positions[0], positions[last] = positions[last], positions[0]
        _sift_down(scores, positions, last, 0)


@numba.njit(parallel=True, cache=True)
def _search(  # type: ignore[no-untyped-def]
    query_offsets,
    query_terms,
    query_weights,
    places,
    weights,
    offsets,
    starts,
    positions,
    scores,
    counts,
    chunk,
):
    queries = len(query_offsets) - 1
    blocks = len(starts) - 1
    largest = 0
    for block in range(blocks):
        largest = max(largest, starts[block + 1] - starts[block])
    for part in numba.prange((queries + chunk - 1) // chunk):
        accumulator = np.zeros(largest, np.float32)
        begin, end = part * chunk, min(queries, (part + 1) * chunk)
        for block in range(blocks):
            size = starts[block + 1] - starts[block]
            for query in range(begin, end):
                for entry in range(query_offsets[query], query_offsets[query + 1]):
                    weight = query_weights[entry]
                    term = query_terms[entry]
                    for posting in range(offsets[block, term], offsets[block, term + 1]):
                        accumulator[places[posting]] += weight * weights[posting]
                counts[query] = _collect(
                    accumulator, size, starts[block], scores[query], positions[query], counts[query]
                )
        for query in range(begin, end):
            _sort_hits(scores[query], positions[query], counts[query])
