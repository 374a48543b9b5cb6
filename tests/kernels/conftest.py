"""What the tests of the SPLADE head share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lexforge.kernels.splade_head_choice import VARIABLE
from lexforge.kernels.splade_head_screens import SCREENS, is_exact


@pytest.fixture
def ask_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make the head take a way by name; skip where the processor does not compute it exactly."""

    def ask(way: str) -> None:
        if way in SCREENS and not is_exact(SCREENS[way], 16):
            pytest.skip(f"this processor does not sum products of {way} exactly, and the head refuses them")
        monkeypatch.setenv(VARIABLE, way)

    return ask
