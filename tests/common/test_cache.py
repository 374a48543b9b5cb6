"""The user's cache follows the convention of the platform."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexforge.common.cache import cache_folder


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user with a small home directory moves every cache by one variable."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "lexforge"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "lexforge"
