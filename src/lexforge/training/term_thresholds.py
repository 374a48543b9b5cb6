"""The thresholds of terms by which queries and documents have wanted mean numbers of active terms.

Term j is active in a text if its largest logit z over the tokens lies above its threshold

    t0 + t1 c_j,    c_j = (q_j - d_j) / (q_j + d_j + RARE),

with q_j the share of term j in all active terms of the queries and d_j that of the documents. t0 moves
queries and documents together, and t1 moves them apart: a term that is typical of queries becomes harder to
activate if queries have too many terms for their documents. For a term that is rare in both, c_j is near 0.

Of all shifts with the same effect on both numbers, those of this form have the least sum of squares, in which
a term counts as much as it is active. This assumes that a term has as many logits near its threshold as its
share of the active terms says.

For each t1 there is one t0 by which the documents have exactly the wanted number, an order statistic of
z - t1 c_j; t1 is then found by bisection on the number of the queries. A few hundred queries have terms that
seem typical of queries because these very queries have them, and other queries would get another number. So
each query is counted with the c_j of the other queries. Source: docs/losses.md, section 19.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RARE = 1e-3  # of all active terms; a sample does not tell where a rarer term is typical
LARGEST_TILT = 6.0  # t1 is sought within this distance of 0
HELPS = 0.5  # of the distance to the wanted number may be left by a t1 that does not reach it
TILTS, BISECTIONS = 7, 40  # t1 is first tried at LARGEST_TILT / 2^7, / 2^6, ..., then between two of these


@dataclass(frozen=True)
class Logits:
    """The largest logit of each term in each text, where it is above some depth below the threshold.

    Args:
        terms: `[n]` int, the term of each entry.
        values: `[n]` float64, its logit; the threshold of the model is 0.
        texts: N, the number of texts.
    """

    terms: NDArray[np.integer]
    values: NDArray[np.float64]
    texts: int

    def mean_active(self, thresholds: NDArray[np.float64]) -> float:
        """Return the mean number of entries per text that are above the thresholds `[V]` of their terms."""
        return float((self.values > thresholds[self.terms]).sum() / self.texts)

    def rates(self, thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return for each term the share of texts whose logit is above its threshold, `[V]`."""
        active = self.terms[self.values > thresholds[self.terms]]
        return np.bincount(active, minlength=len(thresholds)) / self.texts

    def level(self, wanted: float, offsets: NDArray[np.float64]) -> float:
        """Return the number t by which `values > t + offsets[terms]` holds for `wanted` entries per text.

        Args:
            wanted: Mean number of entries per text.
            offsets: `[V]` float64.

        Returns:
            The middle between the last value that counts and the first one that does not.

        Raises:
            TooShallowError: If there are too few entries.
        """
        above = max(1, round(wanted * self.texts))
        if above >= len(self.values):
            raise TooShallowError(
                f"{self.texts} texts have {len(self.values)} logits in all; wanted are {wanted:g} per text"
            )
        shifted = self.values - offsets[self.terms]
        first_out = len(shifted) - above - 1  # in ascending order
        return float(np.partition(shifted, (first_out, first_out + 1))[first_out : first_out + 2].mean())

    def counts(self, active: NDArray[np.bool_], size: int) -> NDArray[np.float64]:
        """Return how many texts have each term among the active entries, `[V]`; `active` is `[n]`."""
        return np.bincount(self.terms[active], minlength=size).astype(np.float64)


class TooShallowError(ValueError):
    """The sample holds too few logits for the wanted number; it must be encoded with a larger depth."""


@dataclass(frozen=True)
class Solution:
    """Thresholds, and the mean numbers of active terms that they are expected to give.

    Args:
        thresholds: `[V]` float64.
        query_terms: That of queries like those of the sample, but not among them.
        document_terms: That of the documents of the sample.
        lowest: How far down the logits must reach for the solution to hold: its lowest threshold, or the
            lowest one that was tried, if no t1 gave other queries the wanted number.
    """

    thresholds: NDArray[np.float64]
    query_terms: float
    document_terms: float
    lowest: float


def solve_thresholds(
    queries: Logits, documents: Logits, query_terms: float, document_terms: float, size: int
) -> Solution:
    """Find a threshold t0 + t1 c_j for each term j, so that queries and documents have the wanted numbers.

    Args:
        queries: The logits of a sample of queries.
        documents: The logits of a sample of documents.
        query_terms: Wanted mean number of active terms per query.
        document_terms: Wanted mean number of active terms per document.
        size: V, the number of terms.

    Returns:
        The thresholds and what they give. If no t1 within `LARGEST_TILT` gives other queries the wanted
        number, it is the one that gives it to the sample, if that at least halves the distance. Otherwise t1
        is 0, and only the documents have their number: the nearest t1 would bring the queries little closer
        and harm the ranking.

    Raises:
        TooShallowError: If the logits do not reach deep enough.
    """
    # Which terms are typical of queries is judged where each side by itself has its wanted number.
    even = np.zeros(size)
    in_query = queries.values > queries.level(query_terms, even)
    in_document = documents.values > documents.level(document_terms, even)
    query_counts, document_counts = queries.counts(in_query, size), documents.counts(in_document, size)
    query_shares, document_shares = query_counts / in_query.sum(), document_counts / in_document.sum()
    contrast = _contrast(query_shares, document_shares)  # [V]
    # For each entry of a query, the contrast of its term in the sample without that query.
    without = (query_counts[queries.terms] - in_query) / in_query.sum()
    contrast_without = _contrast(without, document_shares[queries.terms])

    lowest = np.inf

    def level(tilt: float) -> float:
        nonlocal lowest
        found = documents.level(document_terms, tilt * contrast)
        lowest = min(lowest, found + float((tilt * contrast).min()))
        return found

    def expected(tilt: float) -> float:
        """The mean number of active terms of a query that is not in the sample."""
        return float((queries.values > level(tilt) + tilt * contrast_without).sum() / queries.texts)

    def in_sample(tilt: float) -> float:
        return queries.mean_active(level(tilt) + tilt * contrast)

    tilt = _least_tilt(expected, query_terms)
    if tilt is None:
        # No t1 gives other queries the number. A t1 that gives it to the sample may still bring them near it.
        tilt = _least_tilt(in_sample, query_terms) or 0.0
        if abs(expected(tilt) - query_terms) > HELPS * abs(expected(0.0) - query_terms):
            tilt = 0.0
    else:
        lowest = np.inf
    thresholds = level(tilt) + tilt * contrast
    return Solution(thresholds, expected(tilt), documents.mean_active(thresholds), lowest)


def _least_tilt(count: Callable[[float], float], wanted: float) -> float | None:
    """Find the t1 nearest to 0 by which the queries have the wanted number; None if there is none."""
    # A larger t1 takes terms from the queries: the sign of the surplus says where to look.
    direction = 1.0 if count(0.0) > wanted else -1.0
    tilts = [0.0, *(direction * LARGEST_TILT / 2**power for power in range(TILTS, -1, -1))]
    crossed = next(
        (place for place, tilt in enumerate(tilts) if (count(tilt) - wanted) * direction <= 0), None
    )
    if crossed is None:
        return None
    near, far = tilts[max(crossed - 1, 0)], tilts[crossed]
    for _ in range(BISECTIONS):
        middle = (near + far) / 2
        if (count(middle) - wanted) * direction > 0:
            near = middle
        else:
            far = middle
    return far


def _contrast(query_shares: NDArray[np.float64], document_shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """How typical of queries a term is, from -1 to 1, by its shares of all active terms."""
    return (query_shares - document_shares) / (query_shares + document_shares + RARE)
