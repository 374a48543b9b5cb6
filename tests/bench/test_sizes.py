"""The benchmark of sizes: its memory limit, and its table."""

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


def test_table_shows_the_last_number_of_each_cell(bench: Any) -> None:
    """A size measured in two calls, or twice, must become one line with both sides in each cell."""
    fact = {"size": "xlmr", "parameters": "278295186", "terms": "250002"}
    encoded = "documents_per_second"
    table = bench.sizes_table(
        [
            {**fact, "side": bench.OURS, "seconds_per_step": "9.5", "peak_gb": "8.1", encoded: ""},
            {**fact, "side": bench.PEER, "seconds_per_step": "over 20 GB", encoded: "6"},
            {**fact, "side": bench.OURS, "seconds_per_step": "", "peak_gb": "", encoded: "48"},
            {**fact, "side": bench.OURS, "seconds_per_step": "9.1", "peak_gb": "8.0", encoded: ""},
        ]
    )
    line = "| xlmr, 278 M, V 250,002 | 9.1 / over 20 GB | – / – | 8.0 / – | 48 / 6 |"
    assert table.splitlines()[-1] == line
