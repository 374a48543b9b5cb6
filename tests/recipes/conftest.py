"""What the tests of the recipes share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def no_page() -> Iterator[None]:
    """A run in this process draws no page, which takes a third of a second, and which few tests look at.

    Runs in other processes draw it, and `test_cards.py` draws that of each dense recipe.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lexforge.report.write_page", lambda run, *_, **__: Path(run) / "report.html")
        yield
