"""The average of the trained weights with the start and the threshold, by hand and through the trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder
from sentence_transformers.base.evaluation import BaseEvaluator
from torch import nn

from lexforge.runs import last_checkpoint
from lexforge.training import SpladeTrainer
from lexforge.training.finishing import Finishing


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def test_the_average_is_taken_of_each_weight_once() -> None:
    """Worked by hand: 0.75 * 5 + 0.25 * 1 = 4, also where two modules share the weight."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    nn.init.constant_(model[0].weight, 1.0)
    finishing = Finishing(model, 0.25)
    nn.init.constant_(model[0].weight, 5.0)
    finishing.apply(model)
    assert model[1].weight.tolist() == [[4.0, 4.0], [4.0, 4.0]]
    assert model[0].weight is model[1].weight


def test_a_share_of_nothing_changes_no_bit() -> None:
    """Without the option a run must stay what it was."""
    model = nn.Linear(3, 3)
    finishing = Finishing(model, 0.0)
    nn.init.normal_(model.weight)
    before = weights(model)
    finishing.apply(model)
    with finishing.in_place(model):
        assert all(torch.equal(tensor, before[name]) for name, tensor in weights(model).items())
    assert finishing.start == {}


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    """A share of 1 would throw the training away without a word."""
    with pytest.raises(ValueError, match=r"start_share must lie in \[0, 1\)"):
        Finishing(nn.Linear(1, 1), share)


@pytest.mark.parametrize("threshold", [-0.1, float("inf"), float("nan")])
def test_a_threshold_out_of_range_is_refused(threshold: float) -> None:
    """A negative one would activate terms instead of dropping them."""
    with pytest.raises(ValueError, match="prune_threshold must be finite and >= 0"):
        Finishing(nn.Linear(1, 1), 0.0, threshold)


def test_the_threshold_follows_the_average_and_an_evaluation_undoes_both(
    fresh: Callable[[], SparseEncoder],
) -> None:
    """Only the decoder's bias is lowered, once, and a block gives the trained weights back to the bit."""
    model = fresh()
    finishing = Finishing(model, 0.5, 0.2)
    start = weights(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    trained = weights(model)
    with finishing.in_place(model):
        inside = weights(model)
    assert all(torch.equal(tensor, trained[name]) for name, tensor in weights(model).items())
    finishing.apply(model)
    for name, tensor in weights(model).items():
        assert torch.equal(tensor, inside[name])
        lowered = 0.2 if name.endswith("predictions.bias") else 0.0
        torch.testing.assert_close(tensor, start[name] + 0.5 - lowered)
    assert any(name.endswith("predictions.bias") for name in start)


def test_training_leaves_the_average_and_checkpoints_the_trained_weights(
    fresh: Callable[[], SparseEncoder], tmp_path: Path, make_trainer: Callable[..., SpladeTrainer]
) -> None:
    """The oracle is the same training without the option, averaged by hand."""
    start = weights(fresh())
    alone = make_trainer(fresh(), tmp_path / "alone")
    alone.train()
    trained = weights(alone.model)

    averaged = make_trainer(fresh(), tmp_path / "averaged", start_share=0.25)
    averaged.train()
    for name, tensor in weights(averaged.model).items():
        torch.testing.assert_close(tensor, 0.75 * trained[name] + 0.25 * start[name])

    # The checkpoint of the last step holds the trained weights, and resuming it gives the average again.
    again = make_trainer(fresh(), tmp_path / "averaged", start_share=0.25)
    again.train(resume_from_checkpoint=last_checkpoint(str(tmp_path / "averaged")))
    expected = weights(averaged.model)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(again.model).items())


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
