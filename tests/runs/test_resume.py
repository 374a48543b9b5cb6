"""Whether a run has finished is told by its steps, whatever rounding did to its epochs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from transformers import TrainerState

from lexforge.runs.resume import has_finished
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
