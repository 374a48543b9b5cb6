"""Models and vectors for other runtimes and engines, each checked against the encoder."""

from lexforge.export.card import CardFacts, write_card
from lexforge.export.model import Export, Quantization, Target, check_export, export_model
from lexforge.export.model_check import Agreement

__all__ = [
    "Agreement",
    "CardFacts",
    "Export",
    "Quantization",
    "Target",
    "check_export",
    "export_model",
    "write_card",
]
