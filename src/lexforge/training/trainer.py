"""The SPLADE trainer: the sentence-transformers trainer with a fused head, a curriculum, a teacher and a full
log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sentence_transformers.sparse_encoder import SparseEncoder, SparseEncoderTrainer
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from lexforge.common.types import Embeddings
from lexforge.data import validate_columns
from lexforge.losses import NeuralSparseLoss, loss_tensors
from lexforge.models import fuse_splade_head, vocabulary_size
from lexforge.runs.loss_state import LossStateCallback
from lexforge.training.callbacks import CollapseCallback, CurriculumCallback
from lexforge.training.collator import SpladeCollator
from lexforge.training.curriculum import Phase, phase_at
from lexforge.training.finite import FiniteTraining
from lexforge.training.resumable import ResumableTraining


class SpladeTrainer(ResumableTraining, FiniteTraining, SparseEncoderTrainer):
    """Train a `SparseEncoder` with `NeuralSparseLoss`.

    Beyond `SparseEncoderTrainer` it fuses the model's head (no `[B, L, V]` logits), checks the columns before
    training, adds the teacher's embeddings to each batch, follows the curriculum, logs each part of the loss
    with its share of the total, the active dimensions and the phase, warns when the activations collapse,
    survives interruptions (`ResumableTraining`) and stops where a number is not finite (`FiniteTraining`).

    Args:
        model: The model to train; fused in place.
        loss: A `NeuralSparseLoss` of that model.
        teacher: Texts -> embeddings, such as a `lexforge.data.TeacherCache`; None where the loss needs none.
        phases: The curriculum; empty for none.
        ramp_fraction: Share of training over which the sparsity weights grow to their full values.
        **kwargs: As `SparseEncoderTrainer`: `args`, `train_dataset`, `eval_dataset`, `evaluator`,
            `callbacks`, ...

    Raises:
        ValueError: If the columns break the contract of `lexforge.data.validate_columns` or the phases do not
            cover training.
        NonFiniteError, DiskFullError, DamagedCheckpointError, TrainingInterrupted: By `train`.
    """

    def __init__(
        self,
        model: SparseEncoder,
        loss: NeuralSparseLoss,
        *,
        teacher: Embeddings | None = None,
        phases: Sequence[Phase] = (),
        ramp_fraction: float = 0.0,
        **kwargs: Any,
    ) -> None:
        for name in ("train_dataset", "eval_dataset"):
            given = kwargs.get(name)
            for dataset in given.values() if isinstance(given, dict) else [given]:
                if dataset is not None:
                    validate_columns(dataset)
        self.teacher = teacher
        self.curriculum = CurriculumCallback(loss, phases, ramp_fraction)
        super().__init__(model=fuse_splade_head(model), loss=loss, **kwargs)
        self.add_callback(self.curriculum)
        if loss_tensors(loss):
            self.add_callback(LossStateCallback(loss))
        self.add_callback(CollapseCallback(vocabulary_size(model)))

    def get_data_collator(self, model: Any, args: Any, processing_class: Any = None) -> SpladeCollator:
        """The stock collator's settings, with the teacher's embeddings beside the tokens."""
        stock = super().get_data_collator(model=model, args=args, processing_class=processing_class)
        return SpladeCollator.like(stock, teacher=self.teacher)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LRScheduler:
        """The schedule of the arguments times the learning-rate factor of the phase."""
        given = self.lr_scheduler
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if given is None and any(phase.learning_rate_factor != 1 for phase in self.curriculum.phases):
            self._follow_phases(scheduler, num_training_steps)
        return scheduler

    def _follow_phases(self, scheduler: LRScheduler, num_training_steps: int) -> None:
        if not isinstance(scheduler, LambdaLR):
            raise ValueError(
                "a curriculum with learning-rate factors needs a schedule made of factors (linear, cosine, "
                f"constant, ...); received lr_scheduler_type={self.args.lr_scheduler_type!r}"
            )
        phases = self.curriculum.phases

        def times_phase(factor: Callable[[int], float]) -> Callable[[int], float]:
            def scheduled(step: int) -> float:
                phase = phases[phase_at(phases, min(step / num_training_steps, 1.0))]
                return factor(step) * phase.learning_rate_factor

            return scheduled

        scheduler.lr_lambdas = [times_phase(factor) for factor in scheduler.lr_lambdas]
        groups = zip(scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        for group, base_lr, factor in groups:
            group["lr"] = base_lr * factor(0)

    def track_loss_components(self, loss: dict[str, Tensor]) -> None:
        """Log each part, its share of the total, the active dimensions and the phase."""
        parts = {name: value.detach() for name, value in loss.items()}
        values = torch.stack(list(parts.values())).abs()
        shares = (values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)).unbind()
        logged = dict(parts)
        logged |= {f"share/{name}": share for name, share in zip(parts, shares, strict=True)}
        logged |= self.curriculum.loss.metrics
        if self.curriculum.phases:
            logged["phase"] = torch.tensor(self.curriculum.phase_index + 1.0, device=values.device)
        super().track_loss_components(logged)
        self._parts = parts  # without the shares, which break with the first part
