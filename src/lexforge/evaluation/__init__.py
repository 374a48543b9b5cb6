"""Turn runs and judgements into numbers: measures, comparisons and TREC files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.evaluation.evaluator import RetrievalEvaluator, RetrievalResult
    from lexforge.evaluation.metrics import (
        METRICS,
        MULTILABEL_METRICS,
        Comparison,
        RunScores,
        check_metrics,
        compare_runs,
        evaluate_run,
        measures_below,
        read_scores,
        score_run,
        write_scores,
    )
    from lexforge.evaluation.multilabel import (
        LabelledVectors,
        MultiLabelEvaluator,
        best_threshold,
        evaluate_multilabel,
        f1_at,
    )
    from lexforge.evaluation.retrieval_task import (
        compare_with_bm25,
        evaluate_bm25,
        evaluate_within,
        evaluator_of_split,
        evaluators_by_split,
    )
    from lexforge.evaluation.search_cost import measure_sparsity
    from lexforge.evaluation.tables import (
        MEASURE_NAMES,
        SYSTEM_NAMES,
        example_searches,
        metrics_table,
        split_terms,
    )
    from lexforge.evaluation.trec import check_run_ids, read_run, read_run_of_split, write_run

__all__ = [
    "MEASURE_NAMES",
    "METRICS",
    "MULTILABEL_METRICS",
    "SYSTEM_NAMES",
    "Comparison",
    "LabelledVectors",
    "MultiLabelEvaluator",
    "RetrievalEvaluator",
    "RetrievalResult",
    "RunScores",
    "best_threshold",
    "check_metrics",
    "check_run_ids",
    "compare_runs",
    "compare_with_bm25",
    "evaluate_bm25",
    "evaluate_multilabel",
    "evaluate_run",
    "evaluate_within",
    "evaluator_of_split",
    "evaluators_by_split",
    "example_searches",
    "f1_at",
    "measure_sparsity",
    "measures_below",
    "metrics_table",
    "read_run",
    "read_run_of_split",
    "read_scores",
    "score_run",
    "split_terms",
    "write_run",
    "write_scores",
]

__getattr__, __dir__ = load_when_used(__name__)
