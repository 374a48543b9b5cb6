"""A training by epochs saves as often as one by steps, though its steps are not known before the data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SparseEncoder
from transformers import TrainerControl, TrainerState

from lexforge.runs.checkpoint_folders import by_step, step_of
from lexforge.settings import EvaluationSettings, RecipeSettings, TrainingSettings
from lexforge.training import trainer_options


@pytest.mark.parametrize(("save_steps", "saved"), [(None, [3, 6, 9]), (4, [4, 8, 9])])
def test_each_quarter_of_epochs_is_saved(
    tiny_splade: SparseEncoder,
    make_trainer: Callable[..., Any],
    tmp_path: Path,
    save_steps: int | None,
    saved: list[int],
) -> None:
    """Three epochs of three steps: a run that is killed has lost a third of them, and not all."""
    train = TrainingSettings(epochs=3, precision="fp32", save_steps=save_steps)
    options = trainer_options(RecipeSettings(train=train, output_dir=tmp_path))
    epochs = {"max_steps": -1, "num_train_epochs": 3, "save_steps": options["args"].save_steps}
    make_trainer(tiny_splade, tmp_path, arguments=epochs, callbacks=options["callbacks"]).train()
    assert [step_of(checkpoint) for checkpoint in by_step(tmp_path)] == saved


def test_a_run_by_a_measure_saves_at_its_evaluations(tmp_path: Path) -> None:
    """The Trainer would not find the best checkpoint if it was not saved where it was measured."""
    evaluation = EvaluationSettings(eval_steps=7, best_measure="nDCG@10")
    train = TrainingSettings(epochs=3, precision="fp32")
    options = trainer_options(RecipeSettings(train=train, evaluation=evaluation, output_dir=tmp_path))
    assert options["args"].save_steps == 7
    state = TrainerState(max_steps=20, save_steps=7)
    for callback in options["callbacks"]:
        callback.on_train_begin(options["args"], state, TrainerControl())
    assert state.save_steps == 7
