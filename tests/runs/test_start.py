"""The first two steps of a recipe."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from warm_processes import WarmProcesses

from lexforge.runs import claim_run_directory, open_run, start_processes

SCRIPT = Path(__file__).with_name("claiming_ranks.py")


@dataclass(frozen=True)
class Settings:
    steps: int = 3
    resume: bool = False


def test_the_seed_makes_every_generator_repeat_itself() -> None:
    """Two runs with one seed start from the same weights, whichever library draws them."""
    drawn = []
    for _ in range(2):
        state = start_processes(7)
        legacy = np.random.rand()  # noqa: NPY002 - the generator that set_seed seeds
        drawn.append((random.random(), legacy, torch.rand(1).item()))
    assert drawn[0] == drawn[1]
    assert state.is_main_process
    assert state.num_processes == 1


@pytest.mark.parametrize("taken", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_first_rank_opens_the_directory_for_all(taken: bool, warm: WarmProcesses, tmp_path: Path) -> None:
    """Two ranks that both open it would refuse each other's files; a refusal must reach the ranks that wait,
    or they would wait for ever.
    """
    run = tmp_path / "run"
    if taken:
        open_run(run, {"of": "this process"})
    ended = warm.run(SCRIPT, [str(run), str(tmp_path)], ranks=2)
    assert ended == [0, 0], warm.log.read_text()[-3000:]
    said = [(tmp_path / str(rank)).read_text().splitlines() for rank in range(2)]
    assert said[0] == said[1]
    assert said[0][-3:] == ["config.json", "env.json", "run.lock"]
    assert [f"process {os.getpid()} on" in line for line in said[0][:-3]] == [True, True] * taken


def test_a_resumed_run_has_the_settings_of_the_run_it_continues(tmp_path: Path) -> None:
    """The flag `--resume` is itself a setting, and must not count as a changed one."""
    claim_run_directory(tmp_path / "run", Settings(), resume=False)
    claim_run_directory(tmp_path / "run", Settings(resume=True), resume=True)
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == {"steps": 3, "resume": False}
    with pytest.raises(ValueError, match="steps was 3 and is now 4"):
        claim_run_directory(tmp_path / "run", Settings(4, True), resume=True)
