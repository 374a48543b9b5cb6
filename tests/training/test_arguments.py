"""Training settings carry the notes' numbers of V26 and refuse those that make no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.base.training_args import BatchSamplers

from lexforge.training import TrainingSettings


def test_the_defaults_are_those_of_the_notes(tmp_path: Path) -> None:
    """Typed from the design: batch 24 x 4, AdamW 3e-5, decay .01, warm-up 10 %, cosine, clip 1.0, bf16."""
    assert TrainingSettings().precision == "bf16"
    arguments = TrainingSettings(precision="fp32").arguments(tmp_path)
    assert arguments.num_train_epochs == 25
    assert (arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps) == (24, 4)
    assert (arguments.learning_rate, arguments.weight_decay, arguments.max_grad_norm) == (3e-5, 0.01, 1.0)
    assert (arguments.get_warmup_steps(1000), str(arguments.lr_scheduler_type.value)) == (100, "cosine")
    assert "adamw" in str(arguments.optim).lower()
    assert arguments.batch_sampler == BatchSamplers.NO_DUPLICATES


@pytest.mark.parametrize("terminal", [True, False])
def test_a_progress_bar_is_for_a_terminal(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a job's log each state of the bar would stand anew."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    assert TrainingSettings().arguments(tmp_path).disable_tqdm is not terminal


def test_others_win_over_all(tmp_path: Path) -> None:
    """A user passes any field of the stock arguments."""
    settings = TrainingSettings(steps=7, precision="fp32", logging_steps=3)
    arguments = settings.arguments(tmp_path, weight_decay=0.5)
    assert (arguments.max_steps, arguments.logging_steps, arguments.weight_decay) == (7, 3, 0.5)


def test_arguments_of_another_trainer(tmp_path: Path) -> None:
    """The dense trainer takes the same settings, as its own class and with its own fields."""
    arguments = TrainingSettings(precision="fp32", seed=7).arguments(
        tmp_path, SentenceTransformerTrainingArguments, prompts={"anchor": "query: "}
    )
    assert type(arguments) is SentenceTransformerTrainingArguments
    assert (arguments.seed, arguments.prompts) == (7, {"anchor": "query: "})
    assert (arguments.per_device_train_batch_size, arguments.dataloader_drop_last) == (24, True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"precision": "fp8"},
        {"warmup_fraction": 1.0},
        {"steps": 0},
        {"epochs": 0},
        {"batch_size": 0},
        {"gradient_accumulation_steps": 0},
        {"learning_rate": float("nan")},
        {"logging_steps": -1},
        {"weight_decay": -0.1},
    ],
)
def test_a_wrong_number_is_named(wrong: dict[str, Any]) -> None:
    """The error must come before hours of encoding by the teacher."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TrainingSettings(**wrong)


def test_steps_and_epochs_are_not_given_together(tmp_path: Path) -> None:
    """One of them would be ignored without a word; each of them alone decides."""
    with pytest.raises(ValueError, match="received 100 steps and 3 epochs"):
        TrainingSettings(steps=100, epochs=3)
    by_epochs = TrainingSettings(epochs=3, precision="fp32").arguments(tmp_path)
    assert (by_epochs.max_steps, by_epochs.num_train_epochs) == (-1, 3)
    assert TrainingSettings(steps=100, precision="fp32").arguments(tmp_path).max_steps == 100


@pytest.mark.parametrize("name", ["learning_rate", "warmup_fraction"])
def test_a_value_that_a_recipe_must_choose_is_asked_for(name: str, tmp_path: Path) -> None:
    """Without the check the Trainer would take its own default, which no line names."""
    with pytest.raises(ValueError, match=f"{name} must be a number before training starts; received None"):
        TrainingSettings(**{name: None}, precision="fp32").arguments(tmp_path)
