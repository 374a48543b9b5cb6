"""Sparse vectors of as many documents as wanted, with the statistics of real ones and no copies among them.

A simulated document is made of two real ones that stand close to each other in the order of similarity that
the index uses, as two passages about one matter do. It takes the terms that both have, and each term that
only one has with the probability one half. So the number of terms, their frequencies, and which terms occur
together are those of the real vectors. Every weight is multiplied by a random factor in [.8, 1.2].
"""

from __future__ import annotations

from collections.abc import Iterator

import numba
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lexforge.kernels.document_order import similar_neighbours

NEAR = 64  # the second document stands at most so many places after the first
BLOCK = 65_536  # documents that are made at a time


class Simulation:
    """Simulated documents of any number.

    Args:
        vectors: CSR `[n, V] float32` of real documents, with sorted columns.
    """

    def __init__(self, vectors: sparse.csr_array) -> None:
        self._vectors = vectors[similar_neighbours(vectors, 1)]

    def blocks(self, rows: int, seed: int = 0) -> Iterator[sparse.csr_array]:
        """Yield the documents in blocks: the same ones with the same seed, however many there are.

        Args:
            rows: Number of documents.
            seed: Seed of the random numbers.

        Yields:
            CSR `[at most 65,536, V] float32`.
        """
        real = self._vectors
        for first in range(0, rows, BLOCK):
            rng = np.random.default_rng([seed, first])
            ones = rng.integers(0, real.shape[0], BLOCK)
            others = (ones + rng.integers(1, NEAR + 1, BLOCK)) % real.shape[0]
            seeds = rng.integers(0, 2**31, BLOCK)
            lengths = np.diff(real.indptr)[ones] + np.diff(real.indptr)[others]
            room = np.append(0, np.cumsum(lengths, dtype=np.int64))
            terms, weights = np.empty(room[-1], np.int32), np.empty(room[-1], np.float32)
            counts = np.empty(BLOCK, np.int64)
            _mix(real.indptr, real.indices, real.data, ones, others, seeds, room, terms, weights, counts)
            kept = np.arange(room[-1]) - np.repeat(room[:-1], lengths) < np.repeat(counts, lengths)
            offsets = np.append(0, np.cumsum(counts))
            block = sparse.csr_array((weights[kept], terms[kept], offsets), shape=(BLOCK, real.shape[1]))
            yield block[: rows - first]


@numba.njit(parallel=True, cache=True)
def _mix(
    offsets: NDArray,
    real_terms: NDArray,
    real_weights: NDArray,
    ones: NDArray,
    others: NDArray,
    seeds: NDArray,
    room: NDArray,
    terms: NDArray,
    weights: NDArray,
    counts: NDArray,
) -> None:
    """Write each document from the begin of its room, and how many terms it has."""
    for document in numba.prange(len(ones)):
        state = np.uint64(seeds[document] * 2 + 1)
        one, last_one = offsets[ones[document]], offsets[ones[document] + 1]
        other, last_other = offsets[others[document]], offsets[others[document] + 1]
        free = room[document]
        while one < last_one or other < last_other:
            takes_one = other == last_other or (one < last_one and real_terms[one] <= real_terms[other])
            takes_other = one == last_one or (other < last_other and real_terms[other] <= real_terms[one])
            # Numbers of the generator of Knuth's MMIX; the highest bits are the random ones.
            state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
            chance = np.float64(state >> np.uint64(40)) / np.float64(2**24)
            if takes_one and (not takes_other or chance < 0.5):
                term, weight = real_terms[one], real_weights[one]
            else:
                term, weight = real_terms[other], real_weights[other]
            if (takes_one and takes_other) or chance < 0.5:
                state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                terms[free] = term
                weights[free] = weight * np.float32(0.8 + 0.4 * np.float64(state >> np.uint64(40)) / 2**24)
                free += 1
            one += takes_one
            other += takes_other
        counts[document] = free - room[document]
