"""The benchmark of sizes: its memory limit."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "scripts" / "bench"


@pytest.fixture(scope="module")
def bench() -> Any:
    # A spawned process imports the module by its name, so it is imported and not run from its path.
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("bench_sizes")
    finally:
        sys.path.remove(str(FOLDER))


@pytest.mark.slow
def test_a_process_over_the_limit_is_killed_and_told_apart_from_a_failure(bench: Any) -> None:
    """A run that is too large must not stop the benchmark, and a mistake in it must."""
    assert bench.within(2.0, dict, {"rows": 3}) == {"rows": 3}
    assert bench.within(0.001, dict, {"rows": 3}) is None
    with pytest.raises(RuntimeError, match="dict ended with the exit status 1"):
        bench.within(2.0, dict, 3)
