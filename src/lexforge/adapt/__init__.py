"""Documents without judged queries: pseudo-queries, candidates, the scores of teachers, and a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.adapt.candidates import candidate_pools, listed_rows
    from lexforge.adapt.gate import Verdict, judge, measure
    from lexforge.adapt.queries import PseudoQuery, pseudo_queries, read_queries
    from lexforge.adapt.scores import (
        average_in_spreads,
        scores_by,
        scores_in_index,
        scores_in_ranking,
    )

__all__ = [
    "PseudoQuery",
    "Verdict",
    "average_in_spreads",
    "candidate_pools",
    "judge",
    "listed_rows",
    "measure",
    "pseudo_queries",
    "read_queries",
    "scores_by",
    "scores_in_index",
    "scores_in_ranking",
]

__getattr__, __dir__ = load_when_used(__name__)
