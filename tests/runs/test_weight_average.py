"""The running average of the weights: by hand, through the trainer, resumed, and with the best checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder
from sentence_transformers.base.evaluation import BaseEvaluator
from torch import nn
from transformers import TrainerCallback

from lexforge.runs.weight_average import WeightAverage
from lexforge.training import SpladeTrainer


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


class StepRecorder(TrainerCallback):
    """Keeps the trained weights after each step."""

    def __init__(self) -> None:
        self.seen: list[dict[str, torch.Tensor]] = []

    def on_step_end(self, *args: Any, model: nn.Module, **kwargs: Any) -> None:
        """Copy the weights."""
        self.seen.append(weights(model))


def averages_of(values: list[float], horizon: float) -> list[float]:
    """The average after each step of a weight with these values, as the callback computes it."""
    model = nn.Linear(1, 1, bias=False)
    callback = WeightAverage(horizon)
    found = []
    for step, value in enumerate(values, start=1):
        nn.init.constant_(model.weight, value)
        state = SimpleNamespace(global_step=step, max_steps=len(values))
        callback.on_step_end(None, state, None, model=model)  # type: ignore[arg-type]
        found.append(float(callback.state()["weight"]))
    return found


def test_the_average_is_a_mean_first_and_then_moves() -> None:
    """Worked by hand, h = 2 of 4 steps: 4; (4 + 8) / 2; 6 + (2 - 6) / 2; 4 + (10 - 4) / 2."""
    assert averages_of([4.0, 8.0, 2.0, 10.0], 0.5) == [4.0, 6.0, 4.0, 7.0]


def test_a_horizon_below_one_step_is_the_last_step_and_the_longest_is_the_plain_mean() -> None:
    """The two ends: nothing is averaged in a run of few steps, and all steps count the same at 1."""
    assert averages_of([4.0, 8.0, 3.0], 0.01) == [4.0, 8.0, 3.0]
    assert averages_of([4.0, 8.0, 3.0], 1.0)[-1] == pytest.approx(5.0)


@pytest.mark.parametrize("horizon", [-0.1, 1.5, float("nan")])
def test_a_horizon_out_of_range_is_refused(
    horizon: float,
    fresh: Callable[[], SparseEncoder],
    make_trainer: Callable[..., SpladeTrainer],
    tmp_path: Path,
) -> None:
    """Before any work is lost."""
    with pytest.raises(ValueError, match=r"average_horizon must lie in \[0, 1\]; received"):
        make_trainer(fresh(), tmp_path, average_horizon=horizon)


def test_training_leaves_the_average_of_its_steps_and_of_the_start(
    fresh: Callable[[], SparseEncoder], tmp_path: Path, make_trainer: Callable[..., SpladeTrainer]
) -> None:
    """The oracle reads the weights of each step; h = 3 of 6 steps. Checkpoints hold the trained weights."""
    start, recorder = weights(fresh()), StepRecorder()
    trainer = make_trainer(
        fresh(), tmp_path, average_horizon=0.5, start_share=0.25, prune_threshold=0.1, callbacks=[recorder]
    )
    trainer.train()
    expected = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    for step, seen in enumerate(recorder.seen, start=1):
        for name, tensor in seen.items():
            expected[name] += (tensor - expected[name]) / min(step, 3)
    for name, tensor in weights(trainer.model).items():
        lowered = 0.1 if name.endswith("predictions.bias") else 0.0
        torch.testing.assert_close(tensor, 0.75 * expected[name] + 0.25 * start[name] - lowered)
    trained = SparseEncoder(str(tmp_path / "checkpoint-6"), device="cpu")
    for name, tensor in weights(trained).items():
        assert torch.equal(tensor, recorder.seen[-1][name])


def test_a_resumed_run_has_the_same_average_to_the_bit(
    fresh: Callable[[], SparseEncoder], tmp_path: Path, make_trainer: Callable[..., SpladeTrainer]
) -> None:
    """From the middle, and from a run that has ended; with a share of the start."""
    options = {"average_horizon": 0.5, "start_share": 0.25}
    whole = make_trainer(fresh(), tmp_path / "whole", **options)
    whole.train()
    expected = weights(whole.model)
    for step in (2, 6):
        resumed = make_trainer(fresh(), tmp_path / "whole", **options)
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        found = weights(resumed.model)
        assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_a_checkpoint_without_an_average_is_refused(
    fresh: Callable[[], SparseEncoder], tmp_path: Path, make_trainer: Callable[..., SpladeTrainer]
) -> None:
    """An average that begins anew in the middle must not pass for a resumed one."""
    make_trainer(fresh(), tmp_path).train()
    resumed = make_trainer(fresh(), tmp_path, average_horizon=0.5)
    # The file is there if the head was timed on this machine before.
    with pytest.raises((FileNotFoundError, ValueError), match=r"run_state.* needs.* of weight_average"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_the_best_checkpoint_brings_its_own_average(
    fresh: Callable[[], SparseEncoder],
    tmp_path: Path,
    make_trainer: Callable[..., SpladeTrainer],
    training_rows: list[dict[str, str]],
) -> None:
    """The model that is left must be the one that was measured as the best, not an average of later steps."""
    seen: list[dict[str, torch.Tensor]] = []

    class Falling(BaseEvaluator):
        """Keeps the weights that it is shown, and finds each worse than the one before."""

        primary_metric = "score"

        def __call__(self, model: SparseEncoder, *args: Any, **kwargs: Any) -> dict[str, float]:
            seen.append(weights(model))
            return {"score": -float(len(seen))}

    arguments = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
    arguments |= {"metric_for_best_model": "eval_score", "greater_is_better": True}
    trainer = make_trainer(
        fresh(),
        tmp_path,
        average_horizon=0.5,
        arguments=arguments,
        eval_dataset=Dataset.from_list(training_rows),
        evaluator=Falling(),
    )
    trainer.train()
    assert str(trainer.state.best_model_checkpoint).endswith("checkpoint-2")
    found = weights(trainer.model)
    assert all(torch.equal(tensor, found[name]) for name, tensor in seen[0].items())
