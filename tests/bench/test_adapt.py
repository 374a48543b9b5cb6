"""The table of adaptations: the newest row of each seed counts, and the gate is held against the truth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"


@pytest.fixture
def bench_adapt(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, "common", raising=False)
    import bench_adapt

    return bench_adapt


def row(seed: int, start: float, after: float, better: bool) -> dict[str, str]:
    numbers = {"R@100": 0.5, "document_active_dims": 100, "query_active_dims": 20, "flops": 2}
    return {
        "set": "scifact",
        "split": "dev",
        "model": "tiny",
        "teachers": "start bm25",
        "flags": "",
        "seed": str(seed),
        "start_nDCG@10": str(start),
        "nDCG@10": str(after),
        "gate_better": str(better),
        **{f"start_{name}": str(value) for name, value in numbers.items()},
        **{name: str(value / 2) for name, value in numbers.items()},
    }


def test_seeds_are_averaged_and_verdicts_counted(bench_adapt: Any) -> None:
    """A run that was repeated counts once, with its last row."""
    rows = [row(1, 0.5, 0.9, False), row(1, 0.5, 0.6, True), row(2, 0.5, 0.4, True)]
    *_, line = bench_adapt.table(rows).splitlines()
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == [
        "scifact",
        "dev",
        "tiny",
        "start bm25",
        "2",
        "0.5000 -> 0.5000",
        "0.5000 -> 0.2500",
        "100.00 -> 50.00",
        "2.00 -> 1.00",
        "right in 1 of 2",
    ]
