"""Wanted numbers of active terms: what training aims at, and what is made of the trained weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.sparsity.controller import ActiveTermsController
    from lexforge.sparsity.finishing import Finishing
    from lexforge.sparsity.sample import mean_active_terms, sample_texts
    from lexforge.sparsity.trimming import check_terms_of_model, trim_documents

__all__ = [
    "ActiveTermsController",
    "Finishing",
    "check_terms_of_model",
    "mean_active_terms",
    "sample_texts",
    "trim_documents",
]

__getattr__, __dir__ = load_when_used(__name__)
