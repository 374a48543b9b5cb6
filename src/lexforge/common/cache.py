"""The folder in which lexforge keeps what takes long to compute."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the user's cache: `lexforge` in `$XDG_CACHE_HOME`, or in `~/.cache` where that is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lexforge"
