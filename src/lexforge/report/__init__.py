"""What a run leaves to be looked at: its page, one HTML file that shows what it did, and its diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.report.curve_drawing import Panel, draw_curves
    from lexforge.report.diagnosis import Finding, diagnose, findings_text
    from lexforge.report.model_numbers import record_symptoms
    from lexforge.report.page import write_page
    from lexforge.report.record import RunRecord
    from lexforge.report.training_charts import loss_note
    from lexforge.report.verdict import run_verdict

__all__ = [
    "Finding",
    "Panel",
    "RunRecord",
    "diagnose",
    "draw_curves",
    "findings_text",
    "loss_note",
    "record_symptoms",
    "run_verdict",
    "write_page",
]

__getattr__, __dir__ = load_when_used(__name__)
