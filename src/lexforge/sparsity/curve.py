"""What fewer terms cost: quality, FLOPS and speed over the number of document terms, by three settings."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np
from sentence_transformers import SparseEncoder

from lexforge.common.similarity import Similarity
from lexforge.evaluation import RetrievalEvaluator, measure_sparsity, score_run
from lexforge.models.load import check_encoder
from lexforge.retrieval import InvertedIndex
from lexforge.retrieval.vectors import SparseMatrix
from lexforge.sparsity.stored_vectors import StoredVectors, largest_terms
from lexforge.sparsity.trimming import DocumentLevels, activations_of

CURVE = (16, 24, 32, 48, 64, 96, 128)
"""The numbers of document terms that a curve has by default."""

Setting = Literal["as it is", "shifted by idf", "limited", "level", "max_active_dims", "threshold"]
REPEAT_SECONDS = 0.1  # the search of all queries is repeated so long, and the median of its times counts


@dataclass(frozen=True)
class CurvePoint:
    """One setting of a model, measured.

    Args:
        setting: "as it is"; "shifted by idf", the same model after `shift_bias_by_idf`, also where it is
            limited as well; "limited", under another `max_active_dims`; "level", a model that is trimmed;
            "max_active_dims", the largest terms of each query and each document; or "threshold", the
            activations above one number.
        wanted: Number of document terms that it is for; None for a model that is not trimmed.
        value: The level, the largest number of terms, or the threshold; None for a model that is not trimmed.
        measures: Those of the evaluator, `document_active_dims`, `query_active_dims`, `flops` and
            `search_queries_per_s`.
    """

    setting: Setting
    wanted: int | None
    value: float | None
    measures: dict[str, float]


def trimming_curve(
    model: SparseEncoder,
    evaluator: RetrievalEvaluator,
    levels: DocumentLevels | None,
    *,
    whole: Setting = "as it is",
    batch_size: int = 32,
) -> list[CurvePoint]:
    """Measure a model at several numbers of document terms, beside two settings that need no level.

    The corpus is encoded once: all vectors follow from those of the loosest level. At the level and at the
    threshold of a number, documents have the same terms, and only the weights differ. There is no threshold
    for a number that the model as it is does not have.

    Args:
        model: The SPLADE encoder that the levels were found with. It is the same afterwards.
        evaluator: The queries, what is searched for them, and the measures.
        levels: What `document_levels` found for whole numbers of terms; None measures the model alone.
        whole: What the model is called before it is trimmed.
        batch_size: Number of texts per forward pass.

    Returns:
        The model before it is trimmed, and for each number the level, `max_active_dims` and the threshold.

    Raises:
        ValueError: If a vector is not finite, or the similarity of the model is neither dot nor cosine.
    """
    similarity = check_encoder(model)
    levels = levels or DocumentLevels(0.0, {}, {}, {})
    loosest = min(levels.levels.values(), default=0.0)
    asked = StoredVectors(model, evaluator.query_texts, "query", loosest, batch_size=batch_size)
    searched = StoredVectors(model, evaluator.document_texts, "document", loosest, batch_size=batch_size)

    def point(
        setting: Setting, wanted: int | None, value: float | None, left: SparseMatrix, right: SparseMatrix
    ) -> CurvePoint:
        return CurvePoint(setting, wanted, value, _measured(left, right, evaluator, similarity))

    untrimmed = asked.at_level(), searched.at_level()
    points = [point(whole, None, None, *untrimmed)]
    for number in sorted(levels.levels):
        level, most = levels.levels[number], int(number)
        trimmed = (vectors.at_level(level, levels.scales[number]) for vectors in (asked, searched))
        points.append(point("level", most, level, *trimmed))
        left, right = (largest_terms(vectors, most) for vectors in untrimmed)
        points.append(point("max_active_dims", most, most, left, right))
        if level > 0:
            threshold = float(activations_of(model, np.array([level]))[0])
            above = asked.above(threshold), searched.above(threshold)
            points.append(point("threshold", most, threshold, *above))
    return points


def _measured(
    queries: SparseMatrix, documents: SparseMatrix, evaluator: RetrievalEvaluator, similarity: Similarity
) -> dict[str, float]:
    """Search, and return the measures of `CurvePoint`."""
    index = InvertedIndex.build(documents, evaluator.document_ids, similarity)
    run = evaluator.search(index, queries)  # also what compiles and arranges, before anything is timed
    seconds: list[float] = []
    while sum(seconds) < REPEAT_SECONDS:
        started = time.perf_counter()
        index.search(queries, evaluator.k)
        seconds.append(time.perf_counter() - started)
    measures = score_run(run, evaluator.qrels, evaluator.metrics).mean
    speed = {"search_queries_per_s": len(evaluator.query_ids) / median(seconds)}
    return measures | measure_sparsity(queries, documents) | speed
