"""Evaluation during training: what the settings say is what the trainer does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file
from sentence_transformers import SparseEncoder
from sentence_transformers.base.evaluation.evaluator import BaseEvaluator
from transformers import TrainerState

from lexforge.training import EvaluationSettings, TrainingSettings, best_of, check_reports
from lexforge.training.pace import EarlyStopping, LogPace

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
        trainer = make_trainer(
            model, folder, arguments=arguments, evaluator=Given(), callbacks=chosen.callbacks()
        )
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
    """The best value comes at step 2; two evaluations later training stops, with the weights of step 2. The
    stock callback forgets its count: resumed after step 3, it would train to the end.
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
    assert best_of(trainer.state) == {"best_checkpoint": {"step": 2, "value": 0.5}}
    best = load_file(tmp_path / "checkpoint-2" / "model.safetensors")
    weights = tiny_splade[0].auto_model.state_dict()
    assert best
    for name, tensor in best.items():
        assert weights[name].equal(tensor), name


def test_a_run_without_the_options_evaluates_nothing() -> None:
    """The default must stay what it was: no argument of the Trainer changes."""
    settings = EvaluationSettings()
    assert settings.arguments() == {}
    assert settings.callbacks() == []
    assert best_of(TrainerState()) == {}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"eval_steps": 0}, "eval_steps must be at least 1, or None; received 0"),
        ({"eval_steps": 5, "best_measure": "R@10", "early_stopping": 0}, "early_stopping must be at least 1"),
        ({"best_measure": "nDCG@10"}, "best_measure needs eval_steps"),
        ({"eval_steps": 5, "early_stopping": 2}, "early_stopping needs best_measure"),
    ],
)
def test_options_that_need_each_other_are_refused_alone(wrong: dict[str, Any], message: str) -> None:
    """An option that the run would ignore is an error."""
    with pytest.raises(ValueError, match=message):
        EvaluationSettings(**wrong)


def test_a_measure_that_nobody_computes_is_refused() -> None:
    """The Trainer finds out at its first evaluation, hours later."""
    settings = EvaluationSettings(eval_steps=5, best_measure="recall")
    with pytest.raises(ValueError, match=r"best_measure must be one of \['nDCG@10'\]; received 'recall'"):
        settings.check_measure(["nDCG@10"])


def test_unknown_and_missing_trackers_are_refused() -> None:
    """The Trainer refuses them only when it is built, after all the data has been read."""
    with pytest.raises(ValueError, match="received 'no-such-tracker'"):
        check_reports(["no-such-tracker"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.integrations.get_available_reporting_integrations", lambda: [])
        with pytest.raises(ImportError, match="'wandb', whose package is not installed"):
            check_reports(["wandb"])


@pytest.mark.parametrize(
    ("steps", "given", "expected"), [(4, 50, 1), (60, 50, 6), (400, 50, 10), (400, 5, 5), (5000, 50, 50)]
)
def test_a_short_run_logs_at_least_ten_lines(steps: int, given: int, expected: int) -> None:
    """A run of 60 steps logged once, at step 50."""
    state = TrainerState(max_steps=steps, logging_steps=given)
    LogPace().on_train_begin(SimpleNamespace(), state, SimpleNamespace())  # type: ignore[arg-type]
    assert state.logging_steps == expected


def test_the_pace_is_left_to_a_user_who_gives_one() -> None:
    """An explicit number is an order."""
    assert TrainingSettings(logging_steps=50).callbacks() == []
    assert [type(callback) for callback in TrainingSettings().callbacks()] == [LogPace]


@pytest.mark.parametrize(
    ("values", "stops"),
    [
        ([0.1], False),
        ([0.3, 0.2], False),
        ([0.3, 0.2, 0.3], True),  # an equal value is no better one
        ([0.3, 0.2, 0.4], False),
        ([0.1, 0.5, 0.2, 0.4], True),
    ],
)
def test_early_stopping_by_hand(values: list[float], stops: bool) -> None:
    """Two evaluations in a row without a better value than before them."""
    state = TrainerState(log_history=[{"m": value} for value in values])
    assert EarlyStopping("m", 2)._exhausted(state) == stops
