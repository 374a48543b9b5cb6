"""Training that stops at the first number that is not finite and says where it arose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from sentence_transformers.base.trainer import BaseTrainer
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.losses.queue import NonFiniteKeysError
from lexforge.runs.checkpoints import last_checkpoint
from lexforge.runs.finite import (
    ROWS_KEY,
    NonFiniteError,
    Row,
    any_non_finite,
    describe_non_finite,
    describe_rows,
    is_finite,
    non_finite_names,
    norm_of,
    on_any_rank,
)
from lexforge.training.resumable import save_now


class FiniteTraining(BaseTrainer):
    """Mixed into a sentence-transformers trainer: stop at the first number that is NaN or infinite.

    Three things are checked: the loss of every micro-batch, the gradients of every step before the optimizer
    uses them, and the parameters after the step. The parameters of the loss (prototypes) are included. So no
    checkpoint holds a broken parameter. The error names what broke, the rows of the batch and the last whole
    checkpoint. The rows are found in the training data if the collator names them, as `SpladeCollator` and
    `DenseCollator` do. On several ranks all stop, and the error reports every rank that saw something.

    Under fp16 a gradient beyond the range of the format is not an error: the gradient scaler skips the step
    and halves its scale. Once the scale has fallen below 1, the range cannot be the reason, and the run
    stops.

    Raises:
        NonFiniteError: If `train` or `evaluate` meets a number that is not finite.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._parts: dict[str, Tensor] = {}  # the parts of the last loss, if it came in parts
        self._rows: list[Row] = []  # the rows of all micro-batches of the step under way
        self.add_callback(_ParameterCheck(self))

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward of one micro-batch; the last of a step also checks the gradients.

        The check stands before the gradients are clipped: clipping by a norm that is not finite would spread
        the damage to every parameter. It covers the loss of the same micro-batch, so that the host waits for
        the device once.
        """
        rows = inputs.get(ROWS_KEY, [])
        self._rows += rows
        loss = super().training_step(model, inputs, *args, **kwargs)
        if self.accelerator.sync_gradients:
            gradients = [] if self._scaler_will_skip() else self._named_gradients()
            numbers = [loss, norm_of(gradients)] if gradients else [loss]
            if any_non_finite(*numbers):
                self._check_loss(loss, rows)  # first, because a broken loss breaks the gradients
                broken = non_finite_names(gradients, count_norm=True) if gradients else None
                if broken is not None:
                    self._stop_run(broken, self._rows)
        return loss

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The loss of a micro-batch; if it is not finite, the run stops and the error names its parts.

        The loss of the last micro-batch of a step is checked with the gradients, by `training_step`.
        """
        rows = inputs.pop(ROWS_KEY, [])
        self._parts = {}
        try:
            result = super().compute_loss(model, inputs, *args, **kwargs)
        except NonFiniteKeysError:  # every rank raises it, because the queue takes the keys of all ranks
            self._stop_run(["the keys of the queue"], rows)
        if not (self.model.training and self.accelerator.sync_gradients):
            self._check_loss((result[0] if isinstance(result, tuple) else result).detach(), rows)
        return result

    def _check_loss(self, loss: Tensor, rows: Sequence[Row]) -> None:
        """Stop if the loss is not finite on any rank, and name its broken parts."""
        if not any_non_finite(loss):
            return
        parts = self._parts or {"the loss": loss}
        broken = [name for name, part in parts.items() if not torch.isfinite(part)]
        if not broken and not torch.isfinite(loss):
            broken = ["the sum of " + ", ".join(parts)]
        self._stop_run(broken, rows)

    def track_loss_components(self, loss: dict[str, Tensor]) -> None:
        """Keep the parts of the loss at hand for an error message; what is logged does not change."""
        self._parts = {name: part.detach() for name, part in loss.items()}
        super().track_loss_components(loss)

    def check_parameters(self) -> None:
        """Stop if the step of the optimizer broke a parameter; called before anything is saved.

        Raises:
            NonFiniteError: If a parameter is not finite; the error names it.
        """
        parameters = self._named_parameters()
        if any_non_finite(norm_of(parameters)):
            broken = non_finite_names(parameters, count_norm=False)  # None if only the norm is too large
            if broken is not None:
                self._stop_run(broken, self._rows, parameters=True)
        self._rows = []

    def _named_parameters(self) -> list[tuple[str, Tensor]]:
        """The trained parameters of the model and of the loss, each once."""
        found: dict[Tensor, str] = {}
        losses = self.loss.values() if isinstance(self.loss, dict) else [self.loss]
        for owner in (self.model, *losses):
            for name, parameter in owner.named_parameters():
                if parameter.requires_grad:
                    found.setdefault(parameter, name)
        return [(name, parameter) for parameter, name in found.items()]

    def _named_gradients(self) -> list[tuple[str, Tensor]]:
        return [
            (f"the gradient of {name}", parameter.grad)
            for name, parameter in self._named_parameters()
            if parameter.grad is not None
        ]

    def _scaler_will_skip(self) -> bool:
        """Whether the gradient scaler of fp16 answers for gradients that are not finite."""
        scaler = getattr(self.accelerator, "scaler", None)
        return scaler is not None and scaler.get_scale() >= 1

    def _stop_run(self, broken: Sequence[str], rows: Sequence[Row], *, parameters: bool = False) -> NoReturn:
        """Save if the parameters are still good, and raise the same error on every rank."""
        training = self.model.training
        found = describe_non_finite(broken, describe_rows(rows, self.train_dataset if training else None))
        if parameters:
            when = f"by the optimizer in step {self.state.global_step}"
        elif training:
            when = f"in the step after {self.state.global_step}"
            if self._model_is_finite():
                save_now(self)
        else:
            when = "in evaluation"
        raise NonFiniteError(
            f"{found}, {when}. The last good checkpoint is "
            f"{last_checkpoint(str(self.args.output_dir)) or 'none'}. Lower the learning rate or the weight "
            "of that term, or look at those rows"
        )

    def _model_is_finite(self) -> bool:
        finite = all(is_finite(parameter) for _, parameter in self._named_parameters())
        return not on_any_rank(not finite, self.args.device)


class _ParameterCheck(TrainerCallback):
    """Checks the parameters after each step of the optimizer, before anything is saved."""

    def __init__(self, trainer: FiniteTraining) -> None:
        self.trainer = trainer

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.check_parameters()
