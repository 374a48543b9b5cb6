"""Documents without judged queries: pseudo-queries, candidates and their scores, and a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.adapt.candidates import candidate_pools, listed_rows, scores_in_index
    from lexforge.adapt.gate import Verdict, judge, judgements, measure
    from lexforge.adapt.queries import PseudoQuery, hold_out, pseudo_queries, read_queries

__all__ = [
    "PseudoQuery",
    "Verdict",
    "candidate_pools",
    "hold_out",
    "judge",
    "judgements",
    "listed_rows",
    "measure",
    "pseudo_queries",
    "read_queries",
    "scores_in_index",
]

__getattr__, __dir__ = load_when_used(__name__)
