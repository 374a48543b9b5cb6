"""What an export says of an engine that was never started with it."""

from __future__ import annotations


def experimental(engine: str) -> str:
    """Return the sentence of a target whose files no running engine has read."""
    return (
        f"Experimental: these files were compared with the documentation of {engine}, and were never loaded "
        "into a running one."
    )
