"""Models and vectors for other runtimes and engines, each checked against the encoder."""

from lexforge.export.model import Export, Quantization, Target, check_export, export_model
from lexforge.export.model_check import Agreement

__all__ = ["Agreement", "Export", "Quantization", "Target", "check_export", "export_model"]
