"""Whether a run has finished is told by its steps, and the command that resumes it names its folder."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from transformers import TrainerState

from lexforge.runs import resume_command, write_json
from lexforge.runs.resumable import has_finished
from lexforge.settings import TrainingSettings


@pytest.mark.parametrize(("epochs", "per_epoch"), [(1.36, 25), (1.1, 10), (2.0, 7), (0.3, 10)])
def test_a_run_by_epochs_has_finished_at_its_last_step(epochs: float, per_epoch: int, tmp_path: Path) -> None:
    """1 + 9 / 25 is less than 1.36, and 1.1 * 10 is more than 11: the Trainer rounds up to the next step."""
    arguments = TrainingSettings(epochs=epochs, precision="fp32").arguments(tmp_path)
    steps = math.ceil(epochs * per_epoch)

    def state(step: int) -> TrainerState:
        whole, part = divmod(step, per_epoch)
        epoch = whole + part / per_epoch
        return TrainerState(
            global_step=step, epoch=epoch, max_steps=steps, num_train_epochs=math.ceil(epochs)
        )

    assert [has_finished(state(step), arguments) for step in (steps - 1, steps)] == [False, True]


def test_a_run_that_is_to_go_on_for_more_epochs_has_not_finished(tmp_path: Path) -> None:
    """In Python one may train further, and fewer epochs than are behind the run are no reason to."""
    state = TrainerState(global_step=20, epoch=2.0, max_steps=20, num_train_epochs=2)
    finished = [
        has_finished(state, TrainingSettings(epochs=epochs, precision="fp32").arguments(tmp_path))
        for epochs in (1, 2, 3)
    ]
    assert finished == [True, True, False]
    state = TrainerState(global_step=25, epoch=2.5, max_steps=25, num_train_epochs=3)
    longer = TrainingSettings(epochs=3, precision="fp32").arguments(tmp_path)
    assert not has_finished(state, longer)  # both are three epochs, rounded up


@pytest.mark.parametrize("option", ["output_dir", "output"])
def test_the_command_names_the_folder_of_a_moved_run(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the folder that was recorded, a copy would resume the run that it is a copy of."""
    monkeypatch.chdir(tmp_path)
    flag = f"--{option.replace('_', '-')}"
    first, moved = Path("first"), Path("moved")
    first.mkdir()
    write_json(first / "config.json", {option: "first"})
    write_json(first / "env.json", {"command": ["lexforge", "run", flag, "first"]})
    assert resume_command(first / "checkpoint-2") == f"lexforge run {flag} first --resume"
    first.rename(moved)
    assert resume_command(moved / "checkpoint-2") == f"lexforge run {flag} first --resume {flag} moved"
