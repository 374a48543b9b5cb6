"""What a training leaves: the average of the trained weights with the start, measured on the way."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder
from sentence_transformers.base.evaluation import BaseEvaluator
from torch import nn

from lexforge.runs import DiskFullError
from lexforge.training import SpladeTrainer, save_model


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def test_an_evaluation_measures_the_average_and_training_goes_on_from_its_own_weights(
    fresh: Callable[[], SparseEncoder],
    tmp_path: Path,
    make_trainer: Callable[..., SpladeTrainer],
    training_rows: list[dict[str, str]],
) -> None:
    """The best checkpoint must be chosen by what training would leave, and choosing must not change it."""
    seen: list[dict[str, torch.Tensor]] = []

    class Recorder(BaseEvaluator):
        """Keeps the weights that it is shown."""

        def __call__(self, model: SparseEncoder, *args: Any, **kwargs: Any) -> dict[str, float]:
            seen.append(weights(model))
            return {}

    options = {"arguments": {"eval_strategy": "steps", "eval_steps": 3}}
    options |= {"eval_dataset": Dataset.from_list(training_rows), "evaluator": Recorder()}
    start = weights(fresh())
    make_trainer(fresh(), tmp_path / "alone", **options).train()
    trained, seen[:] = list(seen), []
    averaged = make_trainer(fresh(), tmp_path / "averaged", start_share=0.5, **options)
    averaged.train()
    assert len(trained) == len(seen) == 2  # in the middle and at the end
    for alone, shown in zip(trained, seen, strict=True):
        for name, tensor in shown.items():
            torch.testing.assert_close(tensor, (alone[name] + start[name]) / 2)
    assert all(torch.equal(tensor, seen[1][name]) for name, tensor in weights(averaged.model).items())


def test_a_second_training_starts_from_the_model_that_the_first_one_left(
    fresh: Callable[[], SparseEncoder], tmp_path: Path, make_trainer: Callable[..., SpladeTrainer]
) -> None:
    """Half of the way from its own start, and not from that of the first training, which would undo it. A
    resumed training has the start of the one that it continues.
    """
    trainer = make_trainer(fresh(), tmp_path, start_share=0.5)
    starts = []
    for resumed in (None, None, str(tmp_path / "checkpoint-4")):
        starts.append(weights(trainer.model))
        trainer.train(resumed)
        trained = weights(SparseEncoder(str(tmp_path / "checkpoint-6"), device="cpu"))
        start = starts[-2] if resumed else starts[-1]
        for name, tensor in weights(trainer.model).items():
            torch.testing.assert_close(tensor, (trained[name] + start[name]) / 2)
    assert any(not torch.equal(tensor, starts[0][name]) for name, tensor in starts[1].items())


def test_a_model_that_does_not_fit_on_the_disk_is_told_in_one_line(
    tiny_splade: SparseEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of safetensors ended a trained run in a traceback, which did not name --resume."""
    full = safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    def fail(*_: Any, **__: Any) -> None:
        raise full

    monkeypatch.setattr(tiny_splade, "save_pretrained", fail)
    with pytest.raises(safetensors.SafetensorError):  # there is room: the error has another reason
        save_model(tiny_splade, tmp_path / "model")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(DiskFullError, match=r"does not fit into .*model, where 10 B are free.*\(--resume\)"):
        save_model(tiny_splade, tmp_path / "model")
