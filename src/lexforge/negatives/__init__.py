"""Hard negatives: one rule over any ranking, that of BM25 or of a model, makes rows with negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.negatives.mining import mine_once, rankings
    from lexforge.negatives.rows import judged_run, mined_columns, rows_of_judgements
    from lexforge.negatives.rule import NEGATIVE_RULE, NegativeMiner, NegativeRule

__all__ = [
    "NEGATIVE_RULE",
    "NegativeMiner",
    "NegativeRule",
    "judged_run",
    "mine_once",
    "mined_columns",
    "rankings",
    "rows_of_judgements",
]

__getattr__, __dir__ = load_when_used(__name__)
