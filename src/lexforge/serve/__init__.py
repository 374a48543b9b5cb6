"""An index behind HTTP: searches as JSON, and one page to search by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.serve.app import create_app
    from lexforge.serve.server import run_server

__all__ = ["create_app", "run_server"]

__getattr__, __dir__ = load_when_used(__name__)
