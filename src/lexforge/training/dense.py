"""The trainer of dense encoders: the sentence-transformers trainer with whole checkpoints and checks."""

from __future__ import annotations

from typing import Any

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.base.trainer import BaseTrainer

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
        self.embedding_loss = loss
        super().__init__(model=model, loss=loss, **kwargs)
        self.add_callback(LossStateCallback(loss))

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Compute the loss, and log what it measures beside it, such as the share of candidates left out."""
        result = super().compute_loss(model, inputs, *args, **kwargs)
        if self.embedding_loss.metrics:
            # FiniteTraining's own method is passed over: it would take the metrics for parts of the loss.
            BaseTrainer.track_loss_components(self, self.embedding_loss.metrics)
        return result

    def get_data_collator(self, model: Any, args: Any, processing_class: Any = None) -> DenseCollator:
        """A collator with the stock collator's settings, whose batches also name their rows."""
        stock = super().get_data_collator(model=model, args=args, processing_class=processing_class)
        return DenseCollator.like(stock, encoder=model)
