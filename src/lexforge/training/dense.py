"""The trainer of dense encoders: the sentence-transformers trainer with whole checkpoints and checks."""

from __future__ import annotations

from typing import Any

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer

from lexforge.runs.finite import FiniteTraining
from lexforge.runs.resumable import ResumableTraining
from lexforge.training.any_loss import AnyLossTraining, Losses
from lexforge.training.collator import DenseCollator


class DenseTrainer(ResumableTraining, FiniteTraining, AnyLossTraining, SentenceTransformerTrainer):
    """Train a `SentenceTransformer` with any loss of lexforge or sentence-transformers.

    It takes what `SentenceTransformerTrainer` takes (`AnyLossTraining`) and adds three things. It keeps
    the state of the loss (queue, prototypes, momentum encoder) equal on all ranks and saves it in each
    checkpoint (`RunStateCallback`). It survives interruptions (`ResumableTraining`). It stops when a number
    is not finite (`FiniteTraining`).

    Args:
        model: The model to train; None if `model_init` makes it.
        loss: A loss of that model, a dictionary of losses by the name of the data set, or None for the
            default of `SentenceTransformerTrainer`.
        **kwargs: `fastest_precision`, `dropout` and `gradient_checkpointing` of `AnyLossTraining`, and all of
            `SentenceTransformerTrainer`: `args`, `train_dataset`, `eval_dataset`, `evaluator`, `callbacks`,
            `model_init` and others.

    Raises:
        TypeError: If the loss is none of the above.
        ValueError: If `train` finds that no step can be taken; see also `AnyLossTraining`.
        NonFiniteError: If `train` or `evaluate` meets a number that is NaN or infinite.
        DiskFullError: If a checkpoint that `train` writes does not fit on the disk.
        DamagedCheckpointError: If `train` is to resume from a checkpoint that is not whole.
        TrainingInterrupted: If a signal reached any rank during `train`.
    """

    def __init__(self, model: SentenceTransformer | None = None, loss: Losses = None, **kwargs: Any) -> None:
        super().__init__(model=model, loss=loss, **kwargs)
        if self.encoder_precision is not None:
            self.run_state.parts["encoder_precision"] = self.encoder_precision

    def get_data_collator(self, model: Any, args: Any, processing_class: Any = None) -> DenseCollator:
        """A collator with the stock collator's settings, whose batches also name their rows."""
        stock = super().get_data_collator(model=model, args=args, processing_class=processing_class)
        return DenseCollator.like(stock, encoder=model)
