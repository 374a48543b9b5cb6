"""The SPLADE trainer: the sentence-transformers trainer with a fused head, a curriculum and a teacher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sentence_transformers.sparse_encoder import SparseEncoder, SparseEncoderTrainer
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from lexforge.common.types import Embeddings
from lexforge.data import validate_columns
from lexforge.losses import NeuralSparseLoss, loss_tensors
from lexforge.models import fuse_splade_head, vocabulary_size
from lexforge.runs.loss_state import LossStateCallback
from lexforge.training.callbacks import CollapseCallback, CurriculumCallback
from lexforge.training.collator import SpladeCollator
from lexforge.training.curriculum import Phase, phase_at
from lexforge.training.finishing import Finishing
from lexforge.training.finite import FiniteTraining
from lexforge.training.kernel_tiles import KernelTilesCallback
from lexforge.training.resumable import ResumableTraining
from lexforge.training.term_calibration import calibrate_on_rows, check_can_calibrate
from lexforge.training.term_controller import ActiveTermsController
from lexforge.training.unused_parameters import decide_find_unused


class SpladeTrainer(ResumableTraining, FiniteTraining, SparseEncoderTrainer):
    """Train a `SparseEncoder` with `NeuralSparseLoss`.

    It adds the following to `SparseEncoderTrainer`:

    - It fuses the model's head, so that no `[B, L, V]` logits are made.
    - It checks the columns before training and adds the teacher's embeddings to each batch.
    - It follows the curriculum.
    - It brings the mean number of active terms per text to a wanted number (`ActiveTermsController`), and
      makes the number exact at the end of `train` (`calibrate_active_terms`).
    - It logs each part of the loss with its share of the total, the active dimensions and the phase, and
      warns when the activations collapse.
    - It resumes with the tile sizes that the GPU kernels of the head were timed with (`KernelTilesCallback`).
    - It survives interruptions (`ResumableTraining`) and stops when a number is not finite
      (`FiniteTraining`).

    Args:
        model: The model to train; its head is fused in place.
        loss: A `NeuralSparseLoss` of that model.
        teacher: Maps texts to embeddings, as a `lexforge.data.TeacherCache` does; None if the loss needs
            none.
        phases: The curriculum; empty for none.
        ramp_fraction: Share of training, in [0, 1], during which the sparsity weights grow to their full
            values.
        start_share: Share of the weights of the start, in [0, 1), in the model that `train` leaves and that
            `evaluate` measures; checkpoints hold the trained weights (`Finishing`).
        prune_threshold: What a term's logit must exceed, >= 0, in that model.
        query_terms: Wanted mean number of active terms per query in the model that `train` leaves; None
            leaves it to the weights of the loss. It replaces what `prune_threshold` would give.
        document_terms: The same for documents.
        **kwargs: The arguments of `SparseEncoderTrainer`: `args`, `train_dataset`, `eval_dataset`,
            `evaluator`, `callbacks` and others.

    Raises:
        ValueError: If the columns break the contract of `lexforge.data.validate_columns`, the phases do not
            cover training, `train` finds a schedule that cannot follow the phases, or the model or the loss
            cannot be brought to a wanted number of active terms.
        NonFiniteError: If `train` or `evaluate` meets a number that is NaN or infinite.
        DiskFullError: If a checkpoint that `train` writes does not fit on the disk.
        DamagedCheckpointError: If `train` is to resume from a checkpoint that is not whole.
        TrainingInterrupted: If a signal reached any rank during `train`.
    """

    def __init__(
        self,
        model: SparseEncoder,
        loss: NeuralSparseLoss,
        *,
        teacher: Embeddings | None = None,
        phases: Sequence[Phase] = (),
        ramp_fraction: float = 0.0,
        start_share: float = 0.0,
        prune_threshold: float = 0.0,
        query_terms: float | None = None,
        document_terms: float | None = None,
        **kwargs: Any,
    ) -> None:
        # An evaluation set may be a dictionary of several, by name.
        for name in ("train_dataset", "eval_dataset"):
            given = kwargs.get(name)
            for dataset in given.values() if isinstance(given, dict) else [given]:
                if dataset is not None:
                    validate_columns(dataset)
        self.teacher = teacher
        self.curriculum = CurriculumCallback(loss, phases, ramp_fraction)
        self.finishing = Finishing(model, start_share, prune_threshold)
        self.wanted_terms = {"query_terms": query_terms, "document_terms": document_terms}
        self.controller: ActiveTermsController | None = None
        if query_terms is not None or document_terms is not None:
            check_can_calibrate(model, **self.wanted_terms)
            self.controller = ActiveTermsController(loss, **self.wanted_terms)
        fuse_splade_head(model)
        if kwargs.get("args") is not None:
            decide_find_unused(kwargs["args"], model)
        super().__init__(model=model, loss=loss, **kwargs)
        self.add_callback(self.curriculum)
        if self.controller is not None:
            self.add_callback(self.controller)
        if loss_tensors(loss):
            self.add_callback(LossStateCallback(loss))
        self.add_callback(KernelTilesCallback())
        self.add_callback(CollapseCallback(vocabulary_size(model)))

    def get_data_collator(self, model: Any, args: Any, processing_class: Any = None) -> SpladeCollator:
        """A collator with the stock collator's settings that adds the teacher's embeddings to the tokens."""
        stock = super().get_data_collator(model=model, args=args, processing_class=processing_class)
        return SpladeCollator.like(stock, teacher=self.teacher, encoder=model)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LRScheduler:
        """The schedule that the arguments name, multiplied by the learning-rate factor of the phase."""
        given = self.lr_scheduler
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if given is None and any(phase.learning_rate_factor != 1 for phase in self.curriculum.phases):
            self._follow_phases(scheduler, num_training_steps)
        return scheduler

    def _follow_phases(self, scheduler: LRScheduler, num_training_steps: int) -> None:
        if not isinstance(scheduler, LambdaLR):
            raise ValueError(
                "a curriculum with learning-rate factors needs a schedule made of factors, such as linear, "
                f"cosine or constant; received lr_scheduler_type={self.args.lr_scheduler_type!r}"
            )
        phases = self.curriculum.phases

        def times_phase(factor: Callable[[int], float]) -> Callable[[int], float]:
            def scheduled(step: int) -> float:
                phase = phases[phase_at(phases, min(step / num_training_steps, 1.0))]
                return factor(step) * phase.learning_rate_factor

            return scheduled

        # The scheduler has set the rate of the first step already; set it again with the factor.
        scheduler.lr_lambdas = [times_phase(factor) for factor in scheduler.lr_lambdas]
        groups = zip(scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        for group, base_lr, factor in groups:
            group["lr"] = base_lr * factor(0)

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train as the parent does, average with the start, and apply or calibrate the threshold."""
        output = super().train(*args, **kwargs)
        self.finishing.apply(self.model)
        if self.controller is not None:
            batch_size, seed = self.args.per_device_eval_batch_size, self.args.seed
            reached = calibrate_on_rows(
                self.model, self.train_dataset, batch_size=batch_size, seed=seed, **self.wanted_terms
            )
            self.log({f"calibrated_{kind}_terms": round(mean, 2) for kind, mean in reached.items()})
        return output

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate with the weights and the temperature of the end of training, at every step."""
        with self.curriculum.final_values():
            return super().evaluate(*args, **kwargs)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate what training would leave if it ended here."""
        if not self.is_in_train:  # `train` has finished the weights already
            return super().evaluation_loop(*args, **kwargs)
        with self.finishing.in_place(self.model):
            return super().evaluation_loop(*args, **kwargs)

    def track_loss_components(self, loss: dict[str, Tensor]) -> None:
        """Add the parts of the loss and the active dimensions to the sums that `log` turns into means."""
        super().track_loss_components(loss | self.curriculum.loss.metrics)
        self._parts = {name: part.detach() for name, part in loss.items()}  # an error names these alone

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the mean of each part, its share of the total, the active dimensions and the phase.

        The shares and the phase are added here, once per line of the log and not per micro-batch.
        """
        training_type = "train" if "loss" in logs else "eval" if "eval_loss" in logs else None
        if training_type:
            # Name -> the sum over the micro-batches of this rank since the last line of the log.
            sums = self.accum_loss_components[training_type]
            parts = [name for name in self.curriculum.loss.weights if name in sums]
            if parts:
                # `log` of sentence-transformers divides every sum by the number of micro-batches.
                count = sums["steps"]
                sizes = torch.stack([sums[name].abs() for name in parts])  # [parts]
                shares = count * sizes / sizes.sum().clamp_min(torch.finfo(sizes.dtype).tiny)
                sums |= {f"share/{name}": share for name, share in zip(parts, shares.unbind(), strict=True)}
                if self.curriculum.phases:
                    sums["phase"] = count * (self.curriculum.phase_index + 1.0)
        if self.controller is not None and training_type == "train":
            logs = logs | self.controller.log_values()
        super().log(logs, start_time)
