"""The compiled search of every document for `lexforge.kernels.postings.top_k`, which defines the result.

A few tiles of documents at a time are turned into postings by term. Then all queries of the call are scored
against them, term by term, while the scores of a tile's documents stay in the first-level cache. The weights
of a frequent term form a row over all documents of the tile, with 0 for a document that lacks the term. Such
a row is added many weights at a time, and adding 0 changes no sum.
"""

from __future__ import annotations

import numba
import numpy as np

from lexforge.kernels.postings_search import INFINITE, NO_HIT, SCAN, count_reached, make_key

FREQUENT = 8  # a term in more than an eighth of a tile's documents gets a row


@numba.njit(cache=True)
def _measure(postings, first, last, starts):
    """Write into `starts` where the postings of each term begin, for the documents `first` to `last - 1`."""
    size = last - first
    starts[:] = 0
    for posting in range(postings.offsets[first], postings.offsets[last]):
        starts[postings.terms[posting] + 1] += 1
    for term in range(len(starts) - 1):
        held = starts[term + 1]
        starts[term + 1] = starts[term] + (size if held * FREQUENT > size else held)


@numba.njit(cache=True)
def _turn(postings, first, last, starts, places, weights):
    """Fill the postings by term of the documents `first` to `last - 1`; a row has no entries in `places`."""
    size = last - first
    in_row = np.diff(starts) == size
    for term in range(len(in_row)):
        if in_row[term]:
            weights[starts[term] : starts[term + 1]] = 0
    free = starts[:-1].copy()
    segment = 0
    for place in range(size):
        document = first + place
        while document >= postings.starts[segment + 1]:
            segment += 1
        for posting in range(postings.offsets[document], postings.offsets[document + 1]):
            term = postings.terms[posting]
            weight = np.float32(postings.weights[posting])
            if postings.weights.itemsize == 1:
                weight *= postings.scales[segment, term]
            if in_row[term]:
                weights[free[term] + place] = weight
            else:
                places[free[term]] = place
                weights[free[term]] = weight
                free[term] += 1


@numba.njit(cache=True)
def _add_scores(query, starts, places, weights, scores):
    """Score the documents of a tile: float32 sums over the query's terms in ascending order."""
    query_terms, query_weights = query
    scores[:] = 0
    for entry in range(len(query_terms)):
        start, end = starts[query_terms[entry]], starts[query_terms[entry] + 1]
        query_weight = query_weights[entry]
        if end - start == len(scores):
            row = weights[start:end]
            for place in range(len(scores)):
                scores[place] += query_weight * row[place]
        else:
            for posting in range(start, end):
                scores[places[posting]] += query_weight * weights[posting]


@numba.njit(cache=True)
def _keep_best(hits, count, least, most):
    """Move the best hits to the front, `least` to `most` of them; return their number and the worst key kept.

    The keys are distinct, so the bisection always ends with a number of hits in this range.
    """
    low, high = hits[0], hits[0]
    for hit in hits[:count]:
        low, high = min(low, hit), max(high, hit)
    while low < high:
        middle = low + (high - low) // 2
        reached = 0
        for hit in hits[:count]:
            reached += hit <= middle
        if reached < least:
            low = middle + 1
        else:
            high = middle
            if reached <= most:
                break
    kept = 0
    for hit in hits[:count]:
        hits[kept] = hit
        kept += hit <= high
    return kept, high


@numba.njit(cache=True)
def _collect(scores, positions, k, hits, count, worst):
    """Append the hits of a tile that are no worse than a key; return the number of hits and the new key.

    When the buffer is full, only the best hits are kept, and the key becomes the worst of them.
    """
    bits = scores.view(np.int32)  # integers are compared many at a time
    for begin in range(0, len(bits), SCAN):
        part = bits[begin : begin + SCAN]
        floor = np.int32(INFINITE - (worst >> 32))
        if count_reached(part, floor) == 0:
            continue
        if count + SCAN > len(hits):
            count, worst = _keep_best(hits, count, k, k + k // 8)
        for place in range(begin, begin + len(part)):
            hits[count] = make_key(scores[place], positions[place])
            count += hits[count] <= worst
    return count, worst


@numba.njit(cache=True)
def _search_chunk(postings, queries, rows, tiles, turned, state, k, hits):
    """Search a chunk of the queries in the tiles whose postings are arranged by term.

    The state holds, for each query, the number of hits so far and a key; none of its k best has a larger key.
    """
    offsets, query_terms, query_weights = queries
    starts, places, weights = turned
    counts, worst = state
    buffer = np.empty(np.diff(tiles).max(), np.float32)
    for tile in range(len(tiles) - 1):
        positions = postings.positions[tiles[tile] : tiles[tile + 1]]
        scores = buffer[: len(positions)]
        for row in range(rows[0], rows[1]):
            first, last = offsets[row], offsets[row + 1]
            query = (query_terms[first:last], query_weights[first:last])
            _add_scores(query, starts[tile], places, weights, scores)
            counts[row], worst[row] = _collect(scores, positions, k, hits[row], counts[row], worst[row])


@numba.njit(parallel=True, cache=True)
def search_exhaustively(postings, queries, k, tile_size, together, chunk):
    """Find the hits of every query.

    Args:
        postings: The postings of fewer than 2^32 documents.
        queries: Offsets `[Q + 1] int64`, terms `[T] int64` that ascend within a query, and weights
            `[T] float32` that are > 0.
        k: Number of hits wanted per query.
        tile_size: Documents per tile, at most 65,536.
        together: Number of tiles that are arranged at a time, as one task each.
        chunk: Queries per task.

    Returns:
        `[Q, L] int64` with L at least k. The first k of a row are keys, unsorted, which `unpack` reads; the
        others have no meaning.
    """
    documents, asked = len(postings.positions), len(queries[0]) - 1
    hits = np.empty((asked, 2 * k + SCAN), np.int64)
    state = (np.zeros(asked, np.int64), np.full(asked, NO_HIT - 1))
    starts = np.empty((together, postings.scales.shape[1] + 1), np.int64)
    places, weights = np.empty(0, np.uint16), np.empty(0, np.float32)
    for base in range(0, documents, together * tile_size):
        end = min(base + together * tile_size, documents)
        tiles = np.append(np.arange(base, end, tile_size), end)
        # The postings of all tiles stand in one array, so each tile's starts move behind the tile before it.
        for tile in numba.prange(len(tiles) - 1):
            _measure(postings, tiles[tile], tiles[tile + 1], starts[tile])
        for tile in range(1, len(tiles) - 1):
            starts[tile] += starts[tile - 1, -1]
        needed = starts[len(tiles) - 2, -1]
        if needed > len(places):
            places, weights = np.empty(needed, np.uint16), np.empty(needed, np.float32)
        for tile in numba.prange(len(tiles) - 1):
            _turn(postings, tiles[tile], tiles[tile + 1], starts[tile], places, weights)
        for part in numba.prange((asked + chunk - 1) // chunk):
            rows = (part * chunk, min(asked, (part + 1) * chunk))
            _search_chunk(postings, queries, rows, tiles, (starts, places, weights), state, k, hits)
    counts = state[0]
    for row in numba.prange(asked):
        if counts[row] > k:
            _keep_best(hits[row], counts[row], k, k)
        else:
            hits[row, counts[row] :] = NO_HIT
    return hits
