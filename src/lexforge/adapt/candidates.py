"""The documents that a teacher scores for each query, and the few of them that a training row compares."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from lexforge.common.types import Run
from lexforge.data.columns import ANCHOR, LABEL, POSITIVE


def candidate_pools(
    rankings: Sequence[Run], queries: Iterable[str], own: Mapping[str, str], size: int
) -> dict[str, list[str]]:
    """Unite the best documents of several rankings for each query, in turn from their tops.

    Args:
        rankings: Query id -> document id -> score, of each ranking, the best documents first.
        queries: Query ids.
        own: Query id -> the document that it was taken from, which is a candidate; real queries have none.
        size: Number of candidates per query.

    Returns:
        Query id -> at most `size` distinct documents.
    """
    pools = {}
    for query in queries:
        tops = zip_longest(*(ranking.get(query, {}) for ranking in rankings))
        found = [document for turn in tops for document in turn if document is not None]
        first = [own[query]] if query in own else []
        pools[query] = list(dict.fromkeys(first + found))[:size]
    return pools


def listed_rows(
    texts: Mapping[str, str],
    scores: Run,
    queries: Mapping[str, str],
    documents: int,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Make training rows that compare documents over the whole range of a teacher's scores.

    The candidates are ordered by score and divided into as many strata as a row has documents. Each stratum
    gives one at random, and the first one its best.

    Args:
        texts: Document id -> text.
        scores: Query id -> document id -> the teacher's score.
        queries: Query id -> text.
        documents: Number of documents in a row, at least 2.
        seed: Seed of the draws.

    Returns:
        Rows with `anchor`, `positive`, `negative_1`, ... and `label`, the scores; the best document comes
        first. A query with too few candidates, or with equal scores of all, has no row.

    Source: stratified over the teacher's range, arXiv 2604.04734.
    """
    rows = []
    for query, found in scores.items():
        ranked = sorted(found, key=found.__getitem__, reverse=True)
        if len(ranked) < documents or found[ranked[0]] == found[ranked[-1]]:
            continue
        draw = random.Random(f"{seed} {query}")
        strata = np.array_split(np.arange(len(ranked)), documents)
        chosen = [ranked[0], *(ranked[draw.choice(stratum.tolist())] for stratum in strata[1:])]
        columns = [POSITIVE, *(f"negative_{place}" for place in range(1, documents))]
        row: dict[str, Any] = {ANCHOR: queries[query]}
        row |= {column: texts[document] for column, document in zip(columns, chosen, strict=True)}
        rows.append(row | {LABEL: [found[document] for document in chosen]})
    return rows
