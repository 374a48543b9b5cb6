"""What the tests of the recipes share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in this process draws no page, which takes a third of a second, and which few tests look at.

    Runs in other processes draw it, and `test_cards.py` draws that of each dense recipe.
    """
    monkeypatch.setattr("lexforge.report.write_page", lambda run, *_, **__: Path(run) / "report.html")
