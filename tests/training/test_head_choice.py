"""A resumed run goes by what the run that it continues has measured, and a run records it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from lexforge.kernels import splade_head_choice
from lexforge.kernels.splade_head_choice import Cost, measured_here
from lexforge.runs.run_directory import open_run
from lexforge.training.head_choice import HeadChoiceCallback

KIND = "16 x 40, 2 x 8"
COSTS = {"float32": Cost(0.0, 0.008, 0.0, 1.0), "bfloat16": Cost(0.001, 0.002, 0.002, 0.125)}


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is known, and the folder of the cache cannot be made."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv(splade_head_choice.VARIABLE, raising=False)
    monkeypatch.setattr(splade_head_choice, "_KNOWN", {})


def process(folder: Path) -> tuple[TrainingArguments, TrainerState, TrainerControl]:
    arguments = TrainingArguments(str(folder), report_to="none", use_cpu=True)
    arguments.resume_from_checkpoint = str(folder / "checkpoint-2")
    return arguments, TrainerState(global_step=2, is_world_process_zero=True), TrainerControl()


def test_a_resumed_run_takes_the_measurements_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a cache a new process could find another way the fastest, and round in another order."""
    HeadChoiceCallback().on_train_begin(*process(tmp_path))  # nothing was measured: there is no file
    splade_head_choice._remember(KIND, COSTS)
    HeadChoiceCallback().on_save(*process(tmp_path))
    measured = measured_here()
    monkeypatch.setattr(splade_head_choice, "_KNOWN", {})
    HeadChoiceCallback().on_train_begin(*process(tmp_path))
    assert measured_here() == measured
    assert splade_head_choice._measured() == {KIND: COSTS}

    monkeypatch.setattr(splade_head_choice, "processor_name", lambda: "another processor")
    HeadChoiceCallback().on_train_begin(*process(tmp_path))
    assert measured_here()["kinds"] == {}


def test_a_run_that_measured_nothing_writes_no_file(tmp_path: Path) -> None:
    """Small batches, GPUs and dense models have nothing to keep."""
    HeadChoiceCallback().on_save(*process(tmp_path))
    HeadChoiceCallback().on_train_end(*process(tmp_path))
    assert list(tmp_path.rglob("*.json")) == []


def test_the_environment_is_completed_at_the_end(tmp_path: Path) -> None:
    """`env.json` is written before the first batch, when a new machine has measured nothing."""
    run = open_run(tmp_path / "run", {})
    before = json.loads((run / "env.json").read_text())
    assert before["splade_head"] == {"asked": "measured", "milliseconds": {}}
    splade_head_choice._remember(KIND, COSTS)
    HeadChoiceCallback().on_train_end(*process(run))
    times = {KIND: {"float32": 8.0, "bfloat16": 3.0}}
    assert json.loads((run / "env.json").read_text()) == before | {
        "splade_head": {"asked": "measured", "milliseconds": times}
    }
