"""What tests of data share."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest


@pytest.fixture(autouse=True)
def caches_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` and lexforge keep what they converted; a test must not see what another one left."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets-cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
