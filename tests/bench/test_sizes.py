"""The benchmark of sizes: its search for the largest batch, its memory limit, and its table."""

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


@pytest.mark.parametrize("start", [1, 4, 32, 256])
@pytest.mark.parametrize(
    ("holds", "found"), [(0, 0), (1, 1), (2, 2), (3, 3), (11, 8), (12, 12), (47, 32), (48, 48), (999, 256)]
)
def test_largest_batch_is_a_power_of_two_or_half_as_much_again(
    bench: Any, start: int, holds: int, found: int
) -> None:
    """Whatever batch is tried first, the search must end at the same number and never try more than 256."""
    tried = []

    def fits(rows: int) -> bool:
        tried.append(rows)
        return rows <= holds

    assert bench.largest_batch(fits, start, 256) == found
    assert max(tried) <= 256
    assert len(tried) == len(set(tried))


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
    table = bench.sizes_table(
        [
            {**fact, "side": bench.OURS, "seconds_per_step": "9.5", "peak_gb": "8.1", "largest_batch": ""},
            {**fact, "side": bench.PEER, "seconds_per_step": "over 20 GB", "largest_batch": "6"},
            {**fact, "side": bench.OURS, "seconds_per_step": "", "peak_gb": "", "largest_batch": "48"},
            {**fact, "side": bench.OURS, "seconds_per_step": "9.1", "peak_gb": "8.0", "largest_batch": ""},
        ]
    )
    line = "| xlmr, 278 M, V 250,002 | 9.1 / over 20 GB | – / – | 8.0 / – | 48 / 6 | – / – |"
    assert table.splitlines()[-1] == line
