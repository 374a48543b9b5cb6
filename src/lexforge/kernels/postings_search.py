"""Compiled block-max search behind `lexforge.kernels.postings.top_k`, which says what it computes."""

from __future__ import annotations

import numba
import numpy as np

SCAN = 64  # bounds, or scores, looked at together
LARGEST = np.float32(1e35)  # a bound above it counts as reached: sums beyond float32 may be infinite
LARGEST_FACTOR = np.float32(1e36)  # times a level it is finite still: infinity times level 0 is no number
SMALLEST = np.float32(1.2e-38)  # added to a factor: a product may be rounded down below the normal numbers
INFINITE = np.int64(0x7F800000)  # the bits of the largest score


@numba.njit(cache=True)
def _as_float(bits):
    """The float32 of the bits."""
    return np.int32(bits).view(np.float32)


@numba.njit(cache=True)
def make_key(score, position):
    """A hit as one integer, the smaller the better: by score, then by position.

    The bits of a float32 that is not negative are ordered as the numbers are.
    """
    return (INFINITE - np.int64(np.float32(score).view(np.int32))) << 32 | position


NO_HIT = INFINITE << 32  # score 0: no better than any hit


@numba.njit(cache=True)
def _sift_down(hits, size, hole, key):
    """Put a key into a heap at the hole or below; the root is the worst hit."""
    while 2 * hole + 1 < size:
        child = 2 * hole + 1
        if child + 1 < size:
            child += hits[child + 1] > hits[child]
        if hits[child] <= key:
            break
        hits[hole] = hits[child]
        hole = child
    hits[hole] = key


@numba.njit(cache=True)
def _offer(hits, count, key):
    """Take a hit among the best, a heap as soon as they are k; returns how many they are."""
    if count < len(hits):
        hits[count] = key
        count += 1
        if count == len(hits):
            for hole in range(count // 2 - 1, -1, -1):
                _sift_down(hits, count, hole, hits[hole])
    elif key < hits[0]:
        _sift_down(hits, count, 0, key)
    return count


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
    """The exact score of a document: a float32 sum over its terms, in ascending order.

    A term that the query lacks adds 0, which changes no sum and costs less than a mispredicted branch.
    """
    start, end = postings.offsets[document], postings.offsets[document + 1]
    terms, weights = postings.terms[start:end], postings.weights[start:end]
    score = np.float32(0)
    for place in range(len(terms)):
        query_weight = weight_of[terms[place]]
        weight = np.float32(weights[place])
        if weights.itemsize == 1:  # the factor 0: a level times its scale may be infinite, 0 times that NaN
            weight *= postings.scales[segment, terms[place]] * np.float32(query_weight != 0)
        score += query_weight * weight
    return score


@numba.njit(cache=True)
def count_reached(bounds, floor):
    """How many are at least the floor."""
    count = 0
    for block in range(len(bounds)):
        count += bounds[block] >= floor
    return count


@numba.njit(cache=True)
def _starting_floor(bounds, k):
    """A floor that about 1.5 k to 2 k bounds reach, found by bisection; any floor is safe."""
    bits = bounds.view(np.int32)  # compared many at a time
    largest = np.int32(0)
    for block in range(len(bits)):
        largest = max(largest, bits[block])
    low, high = np.float32(0), _as_float(largest)
    for _ in range(12):
        middle = np.float32(0.5) * low + np.float32(0.5) * high
        reached = count_reached(bounds, middle)
        if 2 * reached < 3 * k:
            high = middle
        else:
            low = middle
            if reached <= 2 * k:
                break
    return low


@numba.njit(cache=True)
def _worst(hits, count):
    """The k-th score so far, 0 while there are fewer."""
    return np.float32(0) if count < len(hits) else _as_float(INFINITE - (hits[0] >> 32))


@numba.njit(cache=True)
def _floor(worst, slack):
    """The lowest bound of a block that may hold one of the k best; a bound of 0 never does."""
    return max(min(worst, LARGEST) / slack, SMALLEST)


@numba.njit(cache=True)
def _visit(postings, segment, low, floor, slack, bounds, buffers, hits, count):
    """Score the blocks whose bounds reach the floor, which rises with the hits; their bounds become 0."""
    weight_of, found = buffers
    blocks = 0
    for begin in range(0, len(bounds), SCAN):
        part = bounds[begin : begin + SCAN]
        if count_reached(part, floor) > 0:
            for block in range(len(part)):
                if part[block] >= floor:
                    found[blocks] = begin + block
                    blocks += 1
    worst = _worst(hits, count)
    for block in found[:blocks]:
        bound, bounds[block] = bounds[block], 0
        if bound < floor:
            continue
        first = postings.starts[segment] + (low + block) * postings.block_size
        for document in range(first, min(first + postings.block_size, postings.starts[segment + 1])):
            score = _score(postings, segment, document, weight_of)
            if score > 0 and score >= worst:
                count = _offer(hits, count, make_key(score, postings.positions[document]))
                worst = _worst(hits, count)
                floor = max(floor, _floor(worst, slack))
    return count


@numba.njit(cache=True)
def _search_segment(postings, segment, low, high, query, buffers, hits, count):
    """Search blocks `low` to `high - 1` of a segment, those of the highest bounds first."""
    query_terms, query_weights = query
    bounds = buffers[0][: high - low]
    bounds[:] = 0
    for entry in range(len(query_terms)):
        scale = postings.scales[segment, query_terms[entry]]
        if scale > 0:  # else no document of the segment holds the term
            factor = min(query_weights[entry] * scale + SMALLEST, LARGEST_FACTOR)
            _add_bounds(postings, segment, query_terms[entry], factor, low, high, bounds)
    slack = np.float32(1 + 2.4e-7 * (len(query_terms) + 8))  # of two sums of rounded float32 products
    if count < len(hits):
        floor = max(_starting_floor(bounds, len(hits)), SMALLEST)
        count = _visit(postings, segment, low, floor, slack, bounds, buffers[1:], hits, count)
    floor = _floor(_worst(hits, count), slack)
    return _visit(postings, segment, low, floor, slack, bounds, buffers[1:], hits, count)


@numba.njit(cache=True)
def _search_query(postings, query, piece, ranges, buffers, hits):
    """Fill a query's hits in one range of the blocks, in any order."""
    query_terms, query_weights = query
    weight_of = buffers[1]
    for entry in range(len(query_terms)):
        weight_of[query_terms[entry]] = query_weights[entry]
    blocks = postings.first_blocks[-1]
    lowest, highest = blocks * piece // ranges, blocks * (piece + 1) // ranges
    count = 0
    for segment in range(len(postings.starts) - 1):
        start, end = postings.first_blocks[segment], postings.first_blocks[segment + 1]
        low, high = max(lowest, start) - start, min(highest, end) - start
        if low < high:
            count = _search_segment(postings, segment, low, high, query, buffers, hits, count)
    hits[count:] = NO_HIT
    for entry in range(len(query_terms)):
        weight_of[query_terms[entry]] = 0


@numba.njit(cache=True)
def _search_chunk(postings, queries, chunk, part, piece, hits):
    """Search a chunk of the queries in one range of the blocks."""
    offsets, terms, weights = queries
    widest = np.diff(postings.first_blocks).max()
    buffers = (
        np.zeros(widest, np.float32),
        np.zeros(postings.scales.shape[1], np.float32),
        np.zeros(widest, np.int32),
    )
    for row in range(part * chunk, min(len(hits), (part + 1) * chunk)):
        first, last = offsets[row], offsets[row + 1]
        query = (terms[first:last], weights[first:last])
        _search_query(postings, query, piece, hits.shape[1], buffers, hits[row, piece])


@numba.njit(parallel=True, cache=True)
def search(postings, queries, chunk, hits):
    """Fill the hits of every query in every range of blocks.

    Args:
        postings: The documents, fewer than 2^32.
        queries: Offsets `[Q + 1] int64`, terms `[...] int64`, ascending in a query, and weights
            `[...] float32`, > 0.
        chunk: Queries a task.
        hits: `[Q, R, K] int64`, filled with keys, unsorted; the blocks are cut into R ranges, each with hits
            of its own. `unpack` reads them.
    """
    ranges = hits.shape[1]
    parts = (len(hits) + chunk - 1) // chunk
    for task in numba.prange(parts * ranges):
        _search_chunk(postings, queries, chunk, task // ranges, task % ranges, hits)


def unpack(hits, k):
    """Sort the keys of all ranges and read the k best.

    Args:
        hits: `[Q, R, K] int64`, what `search` filled; overwritten.
        k: K.

    Returns:
        Positions `[Q, K] int64`, scores `[Q, K] float32`, and the number of hits `[Q] int64`.
    """
    keys = hits.reshape(len(hits), -1)
    keys.sort(axis=1)
    keys = keys[:, :k]
    scores = (INFINITE - (keys >> 32)).astype(np.int32).view(np.float32)
    return keys & 0xFFFFFFFF, scores, np.count_nonzero(scores, axis=1)
