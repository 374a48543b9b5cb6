"""Wanted numbers of active terms: what training aims at, and what is made of the trained weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.sparsity.controller import ActiveTermsController
    from lexforge.sparsity.curve import CURVE, CurvePoint, trimming_curve
    from lexforge.sparsity.finishing import Finishing
    from lexforge.sparsity.sample import mean_active_terms, some_texts
    from lexforge.sparsity.trimming import (
        DocumentLevels,
        check_terms_of_model,
        check_trimming,
        document_levels,
        looks_up_queries,
        lower_to_level,
        trim_documents,
    )

__all__ = [
    "CURVE",
    "ActiveTermsController",
    "CurvePoint",
    "DocumentLevels",
    "Finishing",
    "check_terms_of_model",
    "check_trimming",
    "document_levels",
    "looks_up_queries",
    "lower_to_level",
    "mean_active_terms",
    "some_texts",
    "trim_documents",
    "trimming_curve",
]

__getattr__, __dir__ = load_when_used(__name__)
