"""The compiled search of every document for `lexforge.kernels.postings.top_k`, which defines the result.

The postings of tiles of documents are arranged by term. Then all queries of the call are scored against them,
term by term, while the scores of a tile's documents stay in the first-level cache. The weights of a frequent
term form a row over all documents of the tile, with 0 for a document that lacks the term. Such a row is added
many weights at a time, and adding 0 changes no sum.

The arranged postings of a large corpus would take as much memory as its index. A few tiles are therefore
arranged at a time and forgotten after the call, while those of a small corpus are kept for the next call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from lexforge.kernels.parallel import inner, parallel
from lexforge.kernels.postings_layout import Postings
from lexforge.kernels.postings_search import INFINITE, NO_HIT, SCAN, count_reached, make_key

FREQUENT = 8  # a term in more than an eighth of a tile's documents gets a row


class Arranged(NamedTuple):
    """The postings of T tiles of documents, arranged by term.

    Args:
        tiles: `[T + 1] int64`, the first document of each tile in the stored order, and the end of the last.
        starts: `[T, V + 1] int64`, where the entries of each term of a tile begin in the next two arrays.
        places: `[E] uint16`, the place of the document in its tile; without meaning where a term has a row.
        weights: `[E] float32`.
    """

    tiles: NDArray[np.int64]
    starts: NDArray[np.int64]
    places: NDArray[np.uint16]
    weights: NDArray[np.float32]


@inner
def _measure(postings, first, last, starts):
    """Write into `starts` where the postings of each term begin, for the documents `first` to `last - 1`."""
    size = last - first
    starts[:] = 0
    for posting in range(postings.offsets[first], postings.offsets[last]):
        starts[postings.terms[posting] + 1] += 1
    for term in range(len(starts) - 1):
        held = starts[term + 1]
        starts[term + 1] = starts[term] + (size if held * FREQUENT > size else held)


@inner
def _turn(postings, first, last, starts, places, weights):
    """Fill the postings by term of the documents `first` to `last - 1`; a row has no entries in `places`."""
    size = last - first
    in_row = np.diff(starts) == size
    for term in range(len(in_row)):
        if in_row[term]:
            weights[starts[term] : starts[term + 1]] = 0
    free = starts[:-1].copy()
    for place in range(size):
        document = first + place
        for posting in range(postings.offsets[document], postings.offsets[document + 1]):
            term = postings.terms[posting]
            weight = postings.weights[posting]
            if in_row[term]:
                weights[free[term] + place] = weight
            else:
                places[free[term]] = place
                weights[free[term]] = weight
                free[term] += 1


@inner
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


@inner
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


@inner
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


@parallel
def arrange(postings, first, last, tile_size):
    """Arrange the postings of the documents `first` to `last - 1` by term.

    Args:
        postings: The postings of fewer than 2^32 documents.
        first: First document in the stored order.
        last: The document after the last one.
        tile_size: Documents per tile, at most 65,536. Each tile is one task.

    Returns:
        `Arranged`.
    """
    tiles = np.append(np.arange(first, last, tile_size), last)
    starts = np.empty((len(tiles) - 1, postings.scales.shape[1] + 1), np.int64)
    for tile in numba.prange(len(starts)):
        _measure(postings, tiles[tile], tiles[tile + 1], starts[tile])
    # The entries of all tiles stand in one array, so each tile's starts move behind the tile before it.
    for tile in range(1, len(starts)):
        starts[tile] += starts[tile - 1, -1]
    places, weights = np.empty(starts[-1, -1], np.uint16), np.empty(starts[-1, -1], np.float32)
    for tile in numba.prange(len(starts)):
        _turn(postings, tiles[tile], tiles[tile + 1], starts[tile], places, weights)
    return Arranged(tiles, starts, places, weights)


@inner
def _search_chunk(positions, queries, rows, arranged, tiles, state, k, hits):
    """Search the queries `rows[0]` to `rows[1] - 1` in the tiles `tiles[0]` to `tiles[1] - 1`.

    The state holds, for each query, the number of hits so far and a key; none of its k best has a larger key.
    """
    offsets, query_terms, query_weights = queries
    counts, worst = state
    buffer = np.empty(np.diff(arranged.tiles).max(), np.float32)
    for tile in range(tiles[0], tiles[1]):
        held = positions[arranged.tiles[tile] : arranged.tiles[tile + 1]]
        scores = buffer[: len(held)]
        for row in range(rows[0], rows[1]):
            first, last = offsets[row], offsets[row + 1]
            query = (query_terms[first:last], query_weights[first:last])
            _add_scores(query, arranged.starts[tile], arranged.places, arranged.weights, scores)
            counts[row], worst[row] = _collect(scores, held, k, hits[row], counts[row], worst[row])


@parallel
def search_arranged(positions, queries, arranged, state, k, chunk, hits):
    """Search all queries in the arranged tiles.

    Args:
        positions: `[N] int64`, the position of each document.
        queries: As for `search_exhaustively`.
        arranged: The tiles.
        state: Numbers of hits and keys of the worst hits so far, `[R, Q] int64` each.
        k: Number of hits wanted per query.
        chunk: Queries per task.
        hits: `[R, Q, L] int64`, as for `search_exhaustively`.
    """
    ranges, asked, count = len(hits), len(queries[0]) - 1, len(arranged.starts)
    parts = (asked + chunk - 1) // chunk
    for task in numba.prange(parts * ranges):
        part, piece = task // ranges, task % ranges
        rows = (part * chunk, min(asked, (part + 1) * chunk))
        tiles = (count * piece // ranges, count * (piece + 1) // ranges)
        own = (state[0][piece], state[1][piece])
        _search_chunk(positions, queries, rows, arranged, tiles, own, k, hits[piece])


@parallel
def _finish(counts, k, hits):
    """Move the k best hits of each query to the front, and fill up those of a query that has fewer."""
    ranges, asked = counts.shape
    for task in numba.prange(ranges * asked):
        piece, row = task // asked, task % asked
        if counts[piece, row] > k:
            _keep_best(hits[piece, row], counts[piece, row], k, k)
        else:
            hits[piece, row, counts[piece, row] :] = NO_HIT


def search_exhaustively(
    postings: Postings,
    queries: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]],
    k: int,
    chunk: int,
    ranges: int,
    parts: Iterable[Arranged],
) -> NDArray[np.int64]:
    """Find the hits of every query in every range of tiles.

    Args:
        postings: The postings of fewer than 2^32 documents.
        queries: Offsets `[Q + 1] int64`, terms `[T] int64` that ascend within a query, and weights
            `[T] float32` that are > 0.
        k: Number K of hits wanted per query.
        chunk: Queries per task.
        ranges: Number R of ranges that the tiles of each part are divided into.
        parts: Arranged postings that together hold each document once, in the stored order.

    Returns:
        `[Q, R, K] int64`, unsorted keys, which `unpack` reads. Each range has K hits of its own.
    """
    asked = len(queries[0]) - 1
    hits = np.empty((ranges, asked, 2 * k + SCAN), np.int64)
    state = (np.zeros((ranges, asked), np.int64), np.full((ranges, asked), NO_HIT - 1))
    for arranged in parts:
        search_arranged(postings.positions, queries, arranged, state, k, chunk, hits)
    _finish(state[0], k, hits)
    return hits[:, :, :k].swapaxes(0, 1)
