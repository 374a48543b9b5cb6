"""The SPLADE trainer: the sentence-transformers trainer with a fused head, a curriculum, a teacher and a full
log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sentence_transformers.sparse_encoder import SparseEncoder, SparseEncoderTrainer
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from lexforge.data import validate_columns
from lexforge.losses import NeuralSparseLoss
from lexforge.models import fuse_splade_head
from lexforge.training.callbacks import CurriculumCallback
from lexforge.training.collator import SpladeCollator, TeacherEmbeddings
from lexforge.training.curriculum import Phase, phase_at


class NonFiniteLossError(RuntimeError):
    """A part of the loss became NaN or infinite; training stopped."""


class SpladeTrainer(SparseEncoderTrainer):
    """Train a `SparseEncoder` with `NeuralSparseLoss`.

    Beyond `SparseEncoderTrainer` it fuses the model's head (no `[B, L, V]` logits), checks the columns before
    training, adds the teacher's embeddings to each batch, follows the curriculum, logs each part of the loss
    with its share of the total, the active dimensions and the phase, and stops, after saving, when a part is
    not finite.

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
        NonFiniteLossError: During training, with the part's name.
    """

    def __init__(
        self,
        model: SparseEncoder,
        loss: NeuralSparseLoss,
        *,
        teacher: TeacherEmbeddings | None = None,
        phases: Sequence[Phase] = (),
        ramp_fraction: float = 0.0,
        **kwargs: Any,
    ) -> None:
        for name in ("train_dataset", "eval_dataset"):
            if kwargs.get(name) is not None:
                validate_columns(kwargs[name])
        self.teacher = teacher
        self.curriculum = CurriculumCallback(loss, phases, ramp_fraction)
        super().__init__(model=fuse_splade_head(model), loss=loss, **kwargs)
        self.add_callback(self.curriculum)

    def get_data_collator(self, model: Any, args: Any, processing_class: Any = None) -> SpladeCollator:
        """The stock collator's settings, with the teacher's embeddings beside the tokens."""
        stock = super().get_data_collator(model=model, args=args, processing_class=processing_class)
        return SpladeCollator(
            preprocess_fn=stock.preprocess_fn,
            router_mapping=stock.router_mapping,
            prompts=stock.prompts,
            max_length=stock.max_length,
            teacher=self.teacher,
        )

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
        """Log each part, its share of the total, the active dimensions and the phase; stop where a part is
        not finite.
        """
        parts = {name: value.detach() for name, value in loss.items()}
        self._stop_if_not_finite(parts)
        values = torch.stack(list(parts.values())).abs()
        shares = (values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)).unbind()
        logged = dict(parts)
        logged |= {f"share/{name}": share for name, share in zip(parts, shares, strict=True)}
        logged |= self.curriculum.loss.metrics
        if self.curriculum.phases:
            logged["phase"] = torch.tensor(self.curriculum.phase_index + 1.0, device=values.device)
        super().track_loss_components(logged)

    def _stop_if_not_finite(self, parts: dict[str, Tensor]) -> None:
        broken = ~torch.isfinite(torch.stack(list(parts.values())))
        if dist.is_available() and dist.is_initialized():  # every rank must stop, or the others wait for ever
            flags = broken.float()
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
            broken = flags > 0
        if not broken.any():
            return
        names = [name for name, flag in zip(parts, broken.tolist(), strict=True) if flag]
        where = self._save_before_stopping() if self.model.training else "nothing was saved, in evaluation"
        raise NonFiniteLossError(
            f"{', '.join(names)} became NaN or infinite in the step after {self.state.global_step}; {where}. "
            "Lower the learning rate or the weight of that term, or look at the batch"
        )

    def _save_before_stopping(self) -> str:
        """A checkpoint to resume from if the parameters are still good; else the model alone, to look at."""
        if all(bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters()):
            self._save_checkpoint(self.model, trial=None)
            return (
                f"the state before it was saved as {self.args.output_dir}/checkpoint-{self.state.global_step}"
            )
        folder = Path(str(self.args.output_dir)) / f"non-finite-{self.state.global_step}"
        self.save_model(str(folder), _internal_call=True)
        return f"the model, whose parameters are not finite either, was saved in {folder}"
