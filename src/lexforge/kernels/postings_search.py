"""Compiled block-max search behind `lexforge.kernels.postings.top_k`, which says what it computes."""

from __future__ import annotations

import numba
import numpy as np

GROUP = 256  # blocks whose largest bound is kept: about the square root of a segment's blocks
LARGEST = np.float32(1e35)  # a bound above it counts as reached: sums beyond float32 may be infinite
LARGEST_FACTOR = np.float32(1e36)  # times a level it is finite still: infinity times level 0 is no number
SMALLEST = np.float32(1.2e-38)  # added to a factor: a product may be rounded down below the normal numbers


@numba.njit(cache=True)
def _is_worse(score, position, other_score, other_position):
    """The one order of hits: lower score, then higher position, is worse."""
    return score < other_score or (score == other_score and position > other_position)


@numba.njit(cache=True)
def _sift_down(scores, positions, size, hole):
    """Restore the heap below `hole`; its root is the worst hit."""
    score, position = scores[hole], positions[hole]
    while 2 * hole + 1 < size:
        child = 2 * hole + 1
        other = child + 1
        if other < size and _is_worse(scores[other], positions[other], scores[child], positions[child]):
            child = other
        if not _is_worse(scores[child], positions[child], score, position):
            break
        scores[hole], positions[hole] = scores[child], positions[child]
        hole = child
    scores[hole], positions[hole] = score, position


@numba.njit(cache=True)
def _heapify(scores, positions, count):
    for hole in range(count // 2 - 1, -1, -1):
        _sift_down(scores, positions, count, hole)


@numba.njit(cache=True)
def _sort_hits(scores, positions, count):
    """Heap sort, best first: the worst of what remains goes to the end."""
    _heapify(scores, positions, count)
    for last in range(count - 1, 0, -1):
        scores[0], scores[last] = scores[last], scores[0]
        positions[0], positions[last] = positions[last], positions[0]
        _sift_down(scores, positions, last, 0)


@numba.njit(cache=True)
def _add_bounds(postings, segment, term, factor, low, high, bounds):
    """Add a query term's part to the bounds of blocks `low` to `high - 1` of a segment."""
    start = postings.dense_starts[segment, term]
    if start >= 0:
        row = postings.dense[start + low : start + high]
        for block in range(high - low):
            bounds[block] += factor * np.float32(row[block])
        return
    for entry in range(postings.list_starts[segment, term], postings.list_starts[segment, term + 1]):
        held = np.int64(postings.list_blocks[entry])
        if low <= held < high:
            bounds[held - low] += factor * np.float32(postings.list_levels[entry])


@numba.njit(cache=True)
def _score(postings, segment, document, weight_of):
    """The exact score of a document: a float32 sum over its terms, in ascending order."""
    score = np.float32(0)
    for posting in range(postings.offsets[document], postings.offsets[document + 1]):
        term = postings.terms[posting]
        query_weight = weight_of[term]
        if query_weight != 0:
            weight = np.float32(postings.weights[posting])
            if postings.weights.itemsize == 1:
                weight *= postings.scales[segment, term]
            score += query_weight * weight
    return score


@numba.njit(cache=True)
def _offer(score, position, hit_scores, hit_positions, count):
    """Put a document into the query's heap if it is a hit; returns the heap's new size."""
    k = len(hit_scores)
    if score == 0:
        return count
    if count < k:
        hit_scores[count], hit_positions[count] = score, position
        if count + 1 == k:
            _heapify(hit_scores, hit_positions, k)
        return count + 1
    if _is_worse(hit_scores[0], hit_positions[0], score, position):
        hit_scores[0], hit_positions[0] = score, position
        _sift_down(hit_scores, hit_positions, k, 0)
    return count


@numba.njit(cache=True)
def _search_segment(postings, segment, low, high, query, buffers, hit_scores, hit_positions, count):
    """Search blocks `low` to `high - 1` of a segment, those of the highest bound first."""
    query_terms, query_weights = query
    bounds, group_best, weight_of = buffers
    blocks = high - low
    bounds[:blocks] = 0
    for entry in range(len(query_terms)):
        scale = postings.scales[segment, query_terms[entry]]
        if scale > 0:  # else no document of the segment holds the term
            factor = min(query_weights[entry] * scale + SMALLEST, LARGEST_FACTOR)
            _add_bounds(postings, segment, query_terms[entry], factor, low, high, bounds)
    bits = bounds.view(np.int32)  # not negative: ordered as the floats, and compared many at a time
    groups = (blocks + GROUP - 1) // GROUP
    for group in range(groups):
        best = np.int32(0)
        for block in range(group * GROUP, min(blocks, (group + 1) * GROUP)):
            best = max(best, bits[block])
        group_best[group] = best
    slack = np.float32(1 + 2.4e-7 * (len(query_terms) + 8))  # of two sums of rounded float32 products
    while True:
        group, best = 0, group_best[0]
        for other in range(1, groups):
            if group_best[other] > best:
                group, best = other, group_best[other]
        if best == 0:
            return count
        begin, end = group * GROUP, min(blocks, (group + 1) * GROUP)
        block = begin
        while bits[block] != best:
            block += 1
        if count == len(hit_scores) and bounds[block] * slack < min(hit_scores[0], LARGEST):
            return count
        bits[block] = 0
        best = np.int32(0)
        for other in range(begin, end):
            best = max(best, bits[other])
        group_best[group] = best
        first = postings.starts[segment] + (low + block) * postings.block_size
        for document in range(first, min(first + postings.block_size, postings.starts[segment + 1])):
            score = _score(postings, segment, document, weight_of)
            count = _offer(score, postings.positions[document], hit_scores, hit_positions, count)


@numba.njit(cache=True)
def _search_query(postings, query, piece, ranges, buffers, hit_scores, hit_positions):
    """Fill a query's hits in one range of the blocks, best first; returns their number."""
    query_terms, query_weights = query
    weight_of = buffers[2]
    for entry in range(len(query_terms)):
        weight_of[query_terms[entry]] = query_weights[entry]
    blocks = postings.first_blocks[-1]
    lowest, highest = blocks * piece // ranges, blocks * (piece + 1) // ranges
    count = 0
    for segment in range(len(postings.starts) - 1):
        start, end = postings.first_blocks[segment], postings.first_blocks[segment + 1]
        low, high = max(lowest, start) - start, min(highest, end) - start
        if low < high:
            count = _search_segment(
                postings, segment, low, high, query, buffers, hit_scores, hit_positions, count
            )
    for entry in range(len(query_terms)):
        weight_of[query_terms[entry]] = 0
    _sort_hits(hit_scores, hit_positions, count)
    return count


@numba.njit(cache=True)
def _search_chunk(postings, queries, chunk, part, piece, positions, scores, counts):
    """Search a chunk of the queries in one range of the blocks."""
    offsets, terms, weights = queries
    widest = np.diff(postings.first_blocks).max()
    buffers = (
        np.zeros(widest, np.float32),
        np.zeros((widest + GROUP - 1) // GROUP, np.int32),
        np.zeros(postings.scales.shape[1], np.float32),
    )
    for row in range(part * chunk, min(len(counts), (part + 1) * chunk)):
        first, last = offsets[row], offsets[row + 1]
        query = (terms[first:last], weights[first:last])
        hits = (scores[row, piece], positions[row, piece])
        counts[row, piece] = _search_query(postings, query, piece, counts.shape[1], buffers, hits[0], hits[1])


@numba.njit(parallel=True, cache=True)
def search(postings, queries, chunk, positions, scores, counts):
    """Fill the hits of every query in every range of blocks.

    Args:
        postings: The documents.
        queries: Offsets `[Q + 1] int64`, terms `[...] int64`, ascending in a query, and weights
            `[...] float32`, > 0.
        chunk: Queries a task.
        positions: `[Q, R, K] int64`, filled; the blocks are cut into R ranges, each with hits of its own.
        scores: `[Q, R, K] float32`, filled.
        counts: `[Q, R] int64`, filled: hits found.
    """
    ranges = counts.shape[1]
    parts = (len(counts) + chunk - 1) // chunk
    for task in numba.prange(parts * ranges):
        _search_chunk(postings, queries, chunk, task // ranges, task % ranges, positions, scores, counts)
