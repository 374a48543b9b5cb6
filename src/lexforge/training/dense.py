"""The trainer of dense encoders: the sentence-transformers trainer that survives and stops as ours do."""

from __future__ import annotations

from typing import Any

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer

from lexforge.losses import EmbeddingLoss
from lexforge.runs.loss_state import LossStateCallback
from lexforge.training.collator import DenseCollator
from lexforge.training.finite import FiniteTraining
from lexforge.training.resumable import ResumableTraining


class DenseTrainer(ResumableTraining, FiniteTraining, SentenceTransformerTrainer):
    """Train a `SentenceTransformer` with one of lexforge's losses.

    Beyond `SentenceTransformerTrainer` it keeps the state of the loss (queue, prototypes, momentum encoder)
    equal on all ranks and in each checkpoint (`LossStateCallback`), survives interruptions
    (`ResumableTraining`) and stops where a number is not finite (`FiniteTraining`).

    Args:
        model: The model to train.
        loss: A loss of that model.
        **kwargs: As `SentenceTransformerTrainer`: `args`, `train_dataset`, `eval_dataset`, `evaluator`,
            `callbacks`, ...

    Raises:
        NonFiniteError, DiskFullError, DamagedCheckpointError, TrainingInterrupted: By `train`.
    """

    def __init__(self, model: SentenceTransformer, loss: EmbeddingLoss, **kwargs: Any) -> None:
        super().__init__(model=model, loss=loss, **kwargs)
        self.add_callback(LossStateCallback(loss))

    def get_data_collator(self, model: Any, args: Any, processing_class: Any = None) -> DenseCollator:
        """The stock collator's settings; its batches name their rows."""
        stock = super().get_data_collator(model=model, args=args, processing_class=processing_class)
        return DenseCollator.like(stock)
