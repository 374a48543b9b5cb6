"""The trainer of dense encoders: the sentence-transformers trainer with whole checkpoints and checks."""

from __future__ import annotations

from typing import Any

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer

from lexforge.losses import EmbeddingLoss
from lexforge.runs.loss_state import LossStateCallback
from lexforge.training.collator import DenseCollator
from lexforge.training.finite import FiniteTraining
from lexforge.training.resumable import ResumableTraining
from lexforge.training.unused_parameters import decide_find_unused


class DenseTrainer(ResumableTraining, FiniteTraining, SentenceTransformerTrainer):
    """Train a `SentenceTransformer` with one of lexforge's losses.

    It adds three things to `SentenceTransformerTrainer`. It keeps the state of the loss (queue, prototypes,
    momentum encoder) equal on all ranks and saves it in each checkpoint (`LossStateCallback`). It survives
    interruptions (`ResumableTraining`). It stops when a number is not finite (`FiniteTraining`).

    Args:
        model: The model to train.
        loss: A loss of that model.
        **kwargs: The arguments of `SentenceTransformerTrainer`: `args`, `train_dataset`, `eval_dataset`,
            `evaluator`, `callbacks` and others.

    Raises:
        NonFiniteError: If `train` or `evaluate` meets a number that is NaN or infinite.
        DiskFullError: If a checkpoint that `train` writes does not fit on the disk.
        DamagedCheckpointError: If `train` is to resume from a checkpoint that is not whole.
        TrainingInterrupted: If a signal reached any rank during `train`.
    """

    def __init__(self, model: SentenceTransformer, loss: EmbeddingLoss, **kwargs: Any) -> None:
        if kwargs.get("args") is not None:
            decide_find_unused(kwargs["args"], model)
        super().__init__(model=model, loss=loss, **kwargs)
        self.add_callback(LossStateCallback(loss))

    def get_data_collator(self, model: Any, args: Any, processing_class: Any = None) -> DenseCollator:
        """A collator with the stock collator's settings, whose batches also name their rows."""
        stock = super().get_data_collator(model=model, args=args, processing_class=processing_class)
        return DenseCollator.like(stock)
