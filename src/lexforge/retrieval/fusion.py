"""Reciprocal rank fusion: one ranking of several, whatever the scale of their scores.

Source: Cormack, Clarke and Buettcher, "Reciprocal rank fusion outperforms Condorcet and individual rank
learning methods" (SIGIR 2009). sentence-transformers has it inside an evaluator only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lexforge.retrieval.base import Hits, check_k

RRF_CONSTANT = 60  # the paper's; sentence-transformers has the same


def reciprocal_rank_fusion(rankings: Sequence[Hits], k: int) -> Hits:
    """Fuse rankings of the same queries.

    The score of a document is the sum of 1 / (60 + rank) over the rankings that hold it, with ranks from 1.
    Equal scores stand in the order of the first ranking, and then of the next.

    Args:
        rankings: At least one, of equal numbers of queries. Deeper rankings than k find more.
        k: Number of hits wanted per query, at least 1.

    Returns:
        The fused hits.

    Raises:
        ValueError: If the numbers of queries differ, or k is below 1.
    """
    wanted = check_k(k)
    ids, scores = [], []
    for found in zip(*(hits.ids for hits in rankings), strict=True):
        terms: dict[str, list[float]] = {}
        for ranking in found:
            for rank, document in enumerate(ranking, start=1):
                terms.setdefault(document, []).append(1 / (RRF_CONSTANT + rank))
        # `fsum` rounds once, so documents of the same ranks have equal scores in whatever order.
        total = {document: math.fsum(each) for document, each in terms.items()}
        best = sorted(total, key=lambda document: -total[document])[:wanted]
        ids.append(best)
        scores.append(np.array([total[document] for document in best], np.float32))
    return Hits(ids, scores)
