"""What a test file does on every rank, run once for all of its tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

RANKS = Path(__file__).with_name("ranks.py")


@pytest.fixture(scope="module")
def on_ranks(
    request: pytest.FixtureRequest,
    run_script: Callable[..., None],
    tiny_checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., list[Any]]:
    """A function that calls one of the test file, by its name, on so many ranks.

    It returns the results by rank.
    """

    @cache
    def run(function: str, ranks: int = 2, launcher: Sequence[str] = ()) -> list[Any]:
        folder = tmp_path_factory.mktemp("ranks")
        arguments = (request.path, function, tiny_checkpoint, folder)
        run_script(RANKS, *arguments, ranks=ranks, launcher=launcher, timeout=800)
        return torch.load(folder / "results.pt")

    return run
