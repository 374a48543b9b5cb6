"""The first two steps of a recipe."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import PartialState

from lexforge.runs import claim_run_directory, start_processes


@dataclass(frozen=True)
class Settings:
    steps: int = 3
    resume: bool = False


def process(main: bool, waited: list[str]) -> PartialState:
    """A process that notes in `waited` what stood in the run directory while it waited."""
    state = SimpleNamespace(is_main_process=main, wait_for_everyone=lambda: waited.append("waited"))
    return state  # type: ignore[return-value]


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


def test_the_main_process_opens_the_directory_and_the_others_wait(tmp_path: Path) -> None:
    """Two processes that both open it would refuse each other's files."""
    waited: list[str] = []
    claim_run_directory(process(False, waited), tmp_path / "run", Settings(), resume=False)
    assert not (tmp_path / "run").exists()
    claim_run_directory(process(True, waited), tmp_path / "run", Settings(), resume=False)
    assert (tmp_path / "run" / "env.json").is_file()
    assert waited == ["waited", "waited"]


def test_a_resumed_run_has_the_settings_of_the_run_it_continues(tmp_path: Path) -> None:
    """The flag `--resume` is itself a setting, and must not count as a changed one."""
    claim_run_directory(process(True, []), tmp_path / "run", Settings(), resume=False)
    claim_run_directory(process(True, []), tmp_path / "run", Settings(resume=True), resume=True)
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == {"steps": 3, "resume": False}
    with pytest.raises(ValueError, match="steps was 3 and is now 4"):
        claim_run_directory(process(True, []), tmp_path / "run", Settings(4, True), resume=True)
