"""Trackers get the values of the log in groups, and every other reader of the log gets the plain names."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from sentence_transformers import SparseEncoder
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from lexforge.losses import NeuralSparseLoss
from lexforge.training import PRESETS, SpladeTrainer, TrainingSettings
from lexforge.training.trackers import grouped


class Tracker(TrainerCallback):
    """A tracker as those of transformers are written."""

    seen: dict[str, Any] = {}  # noqa: RUF012 (the trainer makes the object)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        Tracker.seen |= integration_utils.rewrite_logs(logs)


def test_a_tracker_gets_groups_and_the_log_keeps_its_names(
    tiny_splade: SparseEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training as a user starts it, with `report_to`; the names of the log are read by early stopping."""
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "tracker", Tracker)
    stock = integration_utils.rewrite_logs
    rows = Dataset.from_dict({"anchor": ["sort a list", "read"], "positive": ["sorts", "reads a file"]})
    settings = TrainingSettings(
        steps=2, batch_size=2, gradient_accumulation_steps=1, precision="fp32", logging_steps=1
    )
    trainer = SpladeTrainer(
        tiny_splade,
        NeuralSparseLoss(tiny_splade, **PRESETS["plain"].loss.arguments()),
        args=settings.arguments(tmp_path / "run", report_to=["tracker"]),
        train_dataset=rows,
    )
    trainer.train()
    names = {"loss/total", "loss/infonce", "share/infonce", "terms/document"}
    assert names | {"optimizer/learning_rate", "progress/epoch"} <= Tracker.seen.keys()
    assert {"loss", "loss/infonce", "terms/document"} <= trainer.state.log_history[0].keys()
    assert integration_utils.rewrite_logs is stock


def test_an_evaluation_and_what_is_unknown_have_groups_too() -> None:
    """A value without a group would stand alone at the top of the page."""
    assert grouped({"eval_dev_nDCG@10": 0.5, "train_runtime": 3.0, "terms/document_wanted": 64}) == {
        "eval/dev_nDCG@10": 0.5,
        "train/train_runtime": 3.0,
        "terms/document_wanted": 64,
    }


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_the_trackers_rename_by_the_function_that_is_replaced(name: str) -> None:
    """If transformers names its values in another way, the groups are gone without an error."""
    source = inspect.getsource(integration_utils.INTEGRATION_TO_CALLBACK[name].on_log)
    assert " rewrite_logs(" in source
