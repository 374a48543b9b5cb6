"""What the commands of `lexforge` do: one module each, with the settings `Config` and the function `main`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.commands import (
        adapt,
        encode,
        evaluate,
        export_model,
        export_vectors,
        index,
        mine,
        predict,
        recipe,
        report,
        score,
        search,
        serve,
        train,
        trim,
    )

__all__ = [
    "adapt",
    "encode",
    "evaluate",
    "export_model",
    "export_vectors",
    "index",
    "mine",
    "predict",
    "recipe",
    "report",
    "score",
    "search",
    "serve",
    "train",
    "trim",
]

__getattr__, __dir__ = load_when_used(__name__)
