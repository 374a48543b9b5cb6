"""Models and vectors for other runtimes and engines, and the card of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.export.card import CardFacts, write_card
    from lexforge.export.card_options import CardOptions
    from lexforge.export.model import Export, check_export, export_model
    from lexforge.export.model_check import Agreement
    from lexforge.export.targets import Quantization, Target

__all__ = [
    "Agreement",
    "CardFacts",
    "CardOptions",
    "Export",
    "Quantization",
    "Target",
    "check_export",
    "export_model",
    "write_card",
]

__getattr__, __dir__ = load_when_used(__name__)
