"""Evaluation during training: what the settings say is what the trainer does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from sentence_transformers import SparseEncoder
from sentence_transformers.base.evaluation.evaluator import BaseEvaluator

from lexforge.settings import EvaluationSettings, RecipeSettings, TrainingSettings
from lexforge.training import trainer_options
from lexforge.training.recipe import QuarterSteps, check_training

VALUES = (0.2, 0.5, 0.4, 0.3, 0.9)


class Given(BaseEvaluator):
    """Returns the values of a list, one per evaluation; the step decides, so a resumed run finds its own."""

    def __call__(self, model: Any, output_path: str | None = None, epoch: Any = -1, steps: int = -1) -> dict:
        return {"dev_nDCG@10": VALUES[steps - 1]}


@pytest.fixture
def train(make_trainer: Callable[..., Any]) -> Callable[..., Any]:
    """Train at most five steps with the values above; returns the trainer."""

    def run(model: SparseEncoder, folder: Path, resume: bool = False, **settings: Any) -> Any:
        chosen = EvaluationSettings(**{"eval_steps": 1, **settings})
        arguments = {"max_steps": 5, "save_steps": 2, **chosen.arguments()}
        callbacks = trainer_options(RecipeSettings(evaluation=chosen, output_dir=folder))["callbacks"]
        trainer = make_trainer(model, folder, arguments=arguments, evaluator=Given(), callbacks=callbacks)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return run


def evaluated(trainer: Any) -> list[float]:
    name = "eval_dev_nDCG@10"
    return [line[name] for line in trainer.state.log_history if name in line]


def test_dev_is_evaluated_every_n_steps(
    train: Callable[..., Any], tiny_splade: SparseEncoder, tmp_path: Path
) -> None:
    """Before, a run said nothing about its quality until its end."""
    values = evaluated(train(tiny_splade, tmp_path, eval_steps=2))
    assert values == [VALUES[1], VALUES[3], VALUES[4]], "the Trainer evaluates the last step too"


def test_a_resumed_run_stops_early_and_ends_with_the_best_checkpoint(
    train: Callable[..., Any], tiny_splade: SparseEncoder, tmp_path: Path
) -> None:
    """The best value comes at step 2; two evaluations later training stops, with the weights of step 2. By
    default the stock callback forgets its count: resumed after step 3, it would train to the end.
    """

    class Killed(Exception):
        pass

    original = Given.__call__

    def call(self: Any, *args: Any, steps: int = -1, **others: Any) -> dict:
        if steps == 4:
            raise Killed
        return original(self, *args, steps=steps, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Given, "__call__", call)
        with pytest.raises(Killed):
            train(tiny_splade, tmp_path, best_measure="nDCG@10", early_stopping=2)
    trainer = train(tiny_splade, tmp_path, resume=True, best_measure="nDCG@10", early_stopping=2)
    assert evaluated(trainer) == list(VALUES[:4])
    assert trainer.state.global_step == 4
    assert (trainer.state.best_global_step, trainer.state.best_metric) == (2, 0.5)
    best = load_file(tmp_path / "checkpoint-2" / "model.safetensors")
    weights = tiny_splade[0].auto_model.state_dict()
    assert best
    for name, tensor in best.items():
        assert weights[name].equal(tensor), name


def test_a_run_that_has_stopped_early_is_not_trained_further(
    train: Callable[..., Any], make_trainer: Any, fresh: Callable[[], SparseEncoder], tmp_path: Path
) -> None:
    """A run may be killed after its last checkpoint; resumed, it must end where training has ended."""
    settings = {"best_measure": "nDCG@10", "early_stopping": 2}
    whole = train(fresh(), tmp_path, **settings)
    again = train(fresh(), tmp_path, resume=True, **settings)
    assert again.state.global_step == whole.state.global_step == 4
    expected = whole.model.state_dict()
    assert all(tensor.equal(expected[name]) for name, tensor in again.model.state_dict().items())


def test_a_run_without_the_options_evaluates_nothing() -> None:
    """The default must stay what it was: no argument of the Trainer changes."""
    assert EvaluationSettings().arguments() == {}
    train = TrainingSettings(save_steps=500)
    assert [type(one) for one in trainer_options(RecipeSettings(train=train))["callbacks"]] == [QuarterSteps]


def test_unknown_and_missing_trackers_are_refused() -> None:
    """The Trainer refuses them only when it is built, after all the data has been read."""
    with pytest.raises(ValueError, match="received 'no-such-tracker'"):
        check_training(TrainingSettings(report_to=("no-such-tracker",)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.integrations.get_available_reporting_integrations", lambda: [])
        with pytest.raises(ImportError, match="'wandb', whose package is not installed"):
            check_training(TrainingSettings(report_to=("wandb",)))
