"""The free memory of a processor, under the limits of its control groups."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lexforge.common import control_groups
from lexforge.common.device_memory import free_memory

CPU = torch.device("cpu")


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_container_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """The machine may have much more than the container gets; cached files are given back when needed."""
    group = tmp_path / ("memory" if version == 1 else "")
    group.mkdir(exist_ok=True)
    limit, used, cached = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        if version == 1
        else ("memory.max", "memory.current", "inactive_file")
    )
    (group / limit).write_text("1000000\n")
    (group / used).write_text("400000\n")
    (group / "memory.stat").write_text(f"anon 7\n{cached} 50000\n")
    monkeypatch.setattr(control_groups, "ROOT", tmp_path)
    monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "membership")
    (tmp_path / "membership").write_text("4:memory:/docker/abc\n" if version == 1 else "0::/docker/abc\n")
    assert free_memory(CPU) == 650_000
    (group / limit).write_text("max\n" if version == 2 else "9223372036854771712\n")
    assert free_memory(CPU) > 1e8
