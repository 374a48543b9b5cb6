"""What a run leaves in its directory: measures, runs, values of each query, terms and sample searches."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from sentence_transformers import SparseEncoder
from sentence_transformers.base.model import BaseModel

from lexforge.evaluation import RetrievalEvaluator, RetrievalResult, write_run, write_scores
from lexforge.report.searches import sample_searches
from lexforge.report.term_statistics import term_statistics
from lexforge.runs import write_json
from lexforge.storage.files import write_text

TRAINED = "trained"
TERMS_FILE, EXPLORER_FILE, METRICS_FILE = "terms.json", "explorer.json", "metrics.json"
ADAPTATION_FILE = "adapt.json"  # in place of metrics.json, what `lexforge adapt` measured


def run_file(system: str) -> str:
    """Return the name of the file that holds the documents found by a system."""
    return "run.trec" if system == TRAINED else f"{system}.trec"


def scores_file(system: str) -> str:
    """Return the name of the file that holds the values of each query for a system."""
    return f"{system}.scores.json"


class RunRecord:
    """Writes into a run directory what was measured, each file as soon as its content is known.

    Each file is written beside its place and renamed, so a killed run leaves no half of one.

    Args:
        folder: The run directory, which exists.

    Attributes:
        metrics: `{system: {measure: value}}` of what was added, with the sparsity of each system.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.metrics: dict[str, dict[str, float]] = {}
        self._results: dict[str, RetrievalResult] = {}

    def add(self, system: str, result: RetrievalResult) -> None:
        """Write the documents that a system found (`.trec`) and its values of each query (`.scores.json`).

        Args:
            system: `bm25`, `initial` (the model before training) or `trained`.
            result: What was measured.
        """
        self.metrics[system] = result.metrics | result.sparsity
        self._results[system] = result
        # The smaller file comes first, so that a disk that fills up does not take the numbers with it.
        write_scores(self.folder / scores_file(system), result.scores)
        write_run(self.folder / run_file(system), result.run)

    def look_closer(
        self,
        model: BaseModel,
        evaluator: RetrievalEvaluator,
        stopword_ids: Collection[int] = (),
    ) -> None:
        """Write how the trained model uses its vocabulary, and a sample of searches with their terms.

        Args:
            model: The trained model, whose result was added as `trained`.
            evaluator: The evaluator that measured it.
            stopword_ids: Ids of the stop words of a sparse model.
        """
        if isinstance(model, SparseEncoder):
            statistics = term_statistics(model, *evaluator.vectors(model), stopword_ids)
            write_json(self.folder / TERMS_FILE, statistics)
        searches = sample_searches(model, evaluator, self._results)
        write_text(
            self.folder / EXPLORER_FILE, json.dumps(searches, ensure_ascii=False, separators=(",", ":"))
        )
