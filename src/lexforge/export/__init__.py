"""Models and vectors for other runtimes and engines, and the card of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.export.card import write_card
    from lexforge.export.models.export import Export, check_model_export, export_model
    from lexforge.export.trimmed_card import write_trimmed_card
    from lexforge.export.vectors.export import (
        VECTOR_TARGETS,
        Exported,
        check_vector_export,
        export_vectors,
        term_names,
    )
    from lexforge.export.vectors.survey import Queries

__all__ = [
    "VECTOR_TARGETS",
    "Export",
    "Exported",
    "Queries",
    "check_model_export",
    "check_vector_export",
    "export_model",
    "export_vectors",
    "term_names",
    "write_card",
    "write_trimmed_card",
]

__getattr__, __dir__ = load_when_used(__name__)
