"""What a run leaves to be looked at, and its page: one HTML file that shows what the run did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.report.page import write_page
    from lexforge.report.record import RunRecord
    from lexforge.report.verdict import run_verdict

__all__ = ["RunRecord", "run_verdict", "write_page"]

__getattr__, __dir__ = load_when_used(__name__)
