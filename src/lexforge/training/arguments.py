"""The settings of a training run and how they become training arguments."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

if TYPE_CHECKING:
    from sentence_transformers.base.training_args import BaseTrainingArguments
    from transformers import TrainerCallback

Precision = Literal["fp32", "bf16", "fp16"]
PUBLISHED_EPOCHS = 25.0
"""Passes over the data that the notes give V26."""
Arguments = TypeVar("Arguments", bound="BaseTrainingArguments")


@dataclass(frozen=True)
class TrainingSettings:
    """How long, how fast and in which batches to train; the defaults are those of the notes on V26.

    Args:
        steps: Number of optimizer steps; None trains for `epochs` instead.
        epochs: Number of passes over the data; give `steps` or this. None for both leaves the choice to the
            recipe, and is 25 passes, as V26 has, elsewhere.
        batch_size: Rows per device in one micro-batch.
        gradient_accumulation_steps: Micro-batches per optimizer step.
        learning_rate: Peak learning rate of AdamW; after the warm-up it falls along a cosine to 0. None
            leaves the choice to the recipe, which knows the kind of model.
        weight_decay: Weight decay of all parameters except biases and normalisation weights.
        warmup_fraction: Share of training, in [0, 1), during which the learning rate grows linearly. None
            leaves the choice to the recipe.
        max_gradient_norm: Norm to which the gradients are clipped.
        precision: Precision of the encoder under autocast; the loss is computed in float32.
        save_steps: Number of optimizer steps between two checkpoints.
        save_total_limit: Number of checkpoints that are kept, the newest and the best among them; None keeps
            all.
        logging_steps: Number of optimizer steps between two lines of the log; None is 50, or 10 at most if
            the run has no more than 1,000 steps.
        report_to: Trackers that get the log, such as tensorboard or wandb; their packages must be installed.
        seed: Seed of the sampler and of dropout.

    Raises:
        ValueError: If a number is out of range, if `steps` and `epochs` are both given, or if the precision
            is unknown.
    """

    steps: int | None = None
    epochs: float | None = None
    batch_size: int = 24
    gradient_accumulation_steps: int = 4
    learning_rate: float | None = 3e-5
    weight_decay: float = 0.01
    warmup_fraction: float | None = 0.1
    max_gradient_norm: float = 1.0
    precision: Precision = "bf16"
    save_steps: int = 500
    save_total_limit: int | None = 2
    logging_steps: int | None = None
    report_to: tuple[str, ...] = ()
    seed: int = 42

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision must be one of {get_args(Precision)}; received {self.precision!r}")
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                "the length of training is given by --steps or by --epochs; received "
                f"{self.steps} steps and {self.epochs:g} epochs, of which the steps would win in silence"
            )
        if self.warmup_fraction is not None and not 0 <= self.warmup_fraction < 1:
            raise ValueError(f"warmup_fraction must lie in [0, 1); received {self.warmup_fraction}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must be 0 or more; received {self.weight_decay}")
        positive = ("batch_size", "gradient_accumulation_steps", "save_steps")
        optional = ("steps", "epochs", "learning_rate", "logging_steps", "save_total_limit")
        for name in (*optional, *positive, "max_gradient_norm"):
            value = getattr(self, name)
            if not (value is None and name in optional) and not value > 0:
                raise ValueError(f"{name} must be above 0; received {value}")

    def callbacks(self) -> list[TrainerCallback]:
        """Return the callbacks of the trainer: more lines of the log, unless `logging_steps` is given."""
        from lexforge.training.pace import LogPace

        return [LogPace()] if self.logging_steps is None else []

    def arguments(
        self,
        output_dir: str | Path,
        arguments_class: type[Arguments] | None = None,
        **others: Any,
    ) -> Arguments:
        """The settings as the arguments of `SpladeTrainer` or of another trainer of sentence-transformers.

        No batch holds a text twice, because a repeated positive would count as its own negative. The
        incomplete last batch of an epoch is dropped, so that every batch has the same number of negatives on
        every rank.

        Args:
            output_dir: The folder for checkpoints.
            arguments_class: The class that the trainer takes, such as `SentenceTransformerTrainingArguments`;
                None is `SparseEncoderTrainingArguments`.
            **others: Any other field of that class; a field given here replaces the one of the settings.

        Returns:
            The arguments.

        Raises:
            ValueError: If no learning rate or no warm-up has been chosen.
        """
        for name in ("learning_rate", "warmup_fraction"):
            if getattr(self, name) is None:
                raise ValueError(f"{name} must be a number before training starts; received None")
        # Imported here, because the command line of a recipe reads this class before it needs torch.
        import torch
        from sentence_transformers.base.training_args import BatchSamplers
        from sentence_transformers.sparse_encoder import SparseEncoderTrainingArguments

        chosen: type[Any] = arguments_class or SparseEncoderTrainingArguments
        settings: dict[str, Any] = {
            "output_dir": str(output_dir),
            "num_train_epochs": PUBLISHED_EPOCHS if self.epochs is None else self.epochs,
            "max_steps": self.steps or -1,
            "per_device_train_batch_size": self.batch_size,
            "per_device_eval_batch_size": self.batch_size,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "learning_rate": self.learning_rate,
            "weight_decay": self.weight_decay,
            "warmup_steps": self.warmup_fraction,
            "lr_scheduler_type": "cosine",
            "max_grad_norm": self.max_gradient_norm,
            "bf16": self.precision == "bf16",
            "fp16": self.precision == "fp16",
            "batch_sampler": BatchSamplers.NO_DUPLICATES,
            "dataloader_drop_last": True,
            "dataloader_pin_memory": torch.accelerator.is_available(),
            "save_steps": self.save_steps,
            "save_total_limit": self.save_total_limit,
            "logging_steps": self.logging_steps or 50,
            # Without this, ranks on CPUs do not find each other.
            "use_cpu": not torch.accelerator.is_available(),
            "seed": self.seed,
            "report_to": list(self.report_to) or "none",
            "disable_tqdm": not sys.stderr.isatty(),  # a file gets lines, and no thousand pictures of a bar
            # The filter of the Trainer waits for the device several times per micro-batch, and would hide in
            # the log what `FiniteTraining` stops at.
            "logging_nan_inf_filter": False,
            # Every parameter of a SPLADE encoder gets a gradient; `DenseTrainer` looks at its model.
            "ddp_find_unused_parameters": (
                False if issubclass(chosen, SparseEncoderTrainingArguments) else None
            ),
        }
        arguments: Arguments = chosen(**(settings | others))
        return arguments
