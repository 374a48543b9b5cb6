"""What the tests of the SPLADE head share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lexforge.kernels.splade_head.choice import VARIABLE
from lexforge.kernels.splade_head.screens import SCREENS, is_exact


@pytest.fixture
def ask_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Request a backend by name; skip where the processor does not compute it exactly."""

    def ask(backend: str) -> None:
        if backend in SCREENS and not is_exact(SCREENS[backend], 16):
            pytest.skip(f"this processor does not sum products of {backend} exactly: the head refuses them")
        monkeypatch.setenv(VARIABLE, backend)

    return ask
