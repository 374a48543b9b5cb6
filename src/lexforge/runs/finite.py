"""Training that stops at the first number that is not finite and says where it arose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from sentence_transformers.base.trainer import BaseTrainer
from torch import Tensor
from torch.nn.utils import get_total_norm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.common.ranks import of_all_ranks, over_ranks, world_size
from lexforge.losses.base import losses_of
from lexforge.losses.queue import NonFiniteKeysError
from lexforge.runs.checkpoint_folders import last_checkpoint
from lexforge.runs.resumable import save_now
from lexforge.runs.sharded import whole_tensor

# The key of a batch under which the collator puts the texts of its rows, one tuple of strings per row.
ROWS_KEY = "lexforge_rows"
SHOWN_ROWS, SHOWN_LETTERS = 8, 40
Row = tuple[str, ...]


class NonFiniteError(RuntimeError):
    """Training stopped because a part of the loss, a gradient or a parameter became NaN or infinite."""


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
        ValueError: If weights that are to be trained are float16, whose gradients overflow.
        NonFiniteError: If `train` or `evaluate` meets a number that is not finite.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        narrow = [name for name, one in self._named_parameters() if one.dtype == torch.float16]
        if narrow:
            raise ValueError(
                f"{len(narrow)} weights of the model are float16 ({narrow[0]}), whose gradients overflow: "
                "train it in float32 (model.float()), and let fp16=True or bf16=True narrow its products"
            )
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
            gradients = [] if self.scaler_will_skip() else self._named_gradients()
            norms = [norm_of(gradients)] if gradients else []
            if any_non_finite(loss, *norms):
                self._stop_if(self._broken_parts(loss), rows)  # first, because they break the gradients
                broken = non_finite_names(gradients)
                if not broken and not all(map(torch.isfinite, norms)):
                    broken = ["the norm of the gradients"]  # the sum of the squares of finite entries
                self._stop_if(broken, self._rows)
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
            self._stop_if(["the keys of the queue"], rows)
            raise
        if not (self.model.training and self.accelerator.sync_gradients):
            loss = (result[0] if isinstance(result, tuple) else result).detach()
            if any_non_finite(loss):
                self._stop_if(self._broken_parts(loss), rows)
        return result

    def _broken_parts(self, loss: Tensor) -> list[str]:
        """The names of what is not finite in the loss of this rank."""
        parts = self._parts or {"the loss": loss}
        broken = [name for name, part in parts.items() if not torch.isfinite(part)]
        if not broken and not torch.isfinite(loss):
            broken = ["the sum of " + ", ".join(parts)]
        return broken

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
            # No name if only the norm is too large.
            self._stop_if(non_finite_names(parameters), self._rows, parameters=True)
        self._rows = []

    def _named_parameters(self) -> list[tuple[str, Tensor]]:
        """The trained parameters of the model and of the loss, each once."""
        found: dict[Tensor, str] = {}
        for owner in (self.model, *losses_of(self.loss)):
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

    def scaler_will_skip(self) -> bool:
        """Whether the gradient scaler of fp16 answers for gradients that are not finite."""
        scaler = getattr(self.accelerator, "scaler", None)
        return scaler is not None and scaler.get_scale() >= 1

    def _stop_if(self, broken: Sequence[str], rows: Sequence[Row], *, parameters: bool = False) -> None:
        """Raise one error on all ranks if any of them names what broke; good parameters are saved first."""
        training = self.model.training
        data = self.train_dataset if training else None
        ranks = of_all_ranks((broken, describe_rows(rows, data) if broken else ""))
        if not any(names for names, _ in ranks):
            return
        found = "; ".join(
            f"{', '.join(names)} became NaN or infinite"
            + (f" on rank {rank}" if len(ranks) > 1 else "")
            + f" with {described}"
            for rank, (names, described) in enumerate(ranks)
            if names  # the other ranks found nothing
        )
        if parameters:
            when = f"by the optimizer in step {self.state.global_step}"
        elif training:
            when = f"in the step after {self.state.global_step}"
            if self.state.global_step:  # nothing was trained before the first
                bad = non_finite_names(self._named_parameters())
                if not over_ranks(len(bad), self.args.device, "MAX"):
                    save_now(self)
        else:
            when = "in evaluation"
        raise NonFiniteError(
            f"{found}, {when}. The last good checkpoint is "
            f"{last_checkpoint(str(self.args.output_dir)) or 'none'}. Lower the learning rate or the weight "
            "of that term, or look at those rows"
        )


class _ParameterCheck(TrainerCallback):
    """Checks the parameters after each step of the optimizer, before anything is saved."""

    def __init__(self, trainer: FiniteTraining) -> None:
        self.trainer = trainer

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.check_parameters()


def norm_of(named: Iterable[tuple[str, Tensor]]) -> Tensor:
    """The norm of all tensors together, a 0-dim tensor; it is finite only if every entry is.

    Args:
        named: Pairs of a name and a floating-point tensor of any shape, all in shards or none.
    """
    return whole_tensor(get_total_norm([tensor.detach() for _, tensor in named]))


def any_non_finite(*numbers: Tensor) -> bool:
    """Whether one of the numbers is NaN or infinite on any rank; all ranks must ask together.

    The answer waits for the device once, however many numbers there are.

    Args:
        *numbers: 0-dim floating-point tensors on one device.
    """
    broken = ~torch.stack([torch.isfinite(number) for number in numbers]).all()
    if world_size() > 1:
        broken = broken.float()  # a reduction by maximum takes numbers
        dist.all_reduce(broken, op=dist.ReduceOp.MAX)
    return bool(broken)


def non_finite_names(named: Iterable[tuple[str, Tensor]]) -> list[str]:
    """The names of the tensors that hold a NaN or an infinite entry on this rank.

    Args:
        named: As in `norm_of`; all ranks must ask together if the tensors are in shards.
    """
    return [name for name, tensor in named if not torch.isfinite(whole_tensor(tensor.detach())).all()]


def texts_of(row: dict[str, Any]) -> Row:
    """The texts of a row, in the order of its columns."""
    return tuple(value for value in row.values() if isinstance(value, str))


def describe_rows(rows: Sequence[Row], data: Any = None) -> str:
    """The number of the rows, their places in the training data and the beginning of their first texts.

    Args:
        rows: The texts of each row; empty if the collator does not name them.
        data: The data that the rows come from, or None if their places do not matter.

    Returns:
        A few words for an error message.
    """
    if not rows:
        return "rows that the data collator does not name"
    places = _places(rows, data)
    numbers = f" {', '.join(map(str, places))} of the training data" if places else f": {len(rows)} rows"
    texts = [repr(row[0][:SHOWN_LETTERS]) for row in rows if row]  # a row of images alone has none
    if not texts:
        return f"rows{numbers}"
    return f"rows{numbers} ({', '.join(texts[:SHOWN_ROWS])}{', ...' if len(texts) > SHOWN_ROWS else ''})"


def _places(rows: Sequence[Row], data: Any) -> list[int]:
    """The indices of rows in the data, found by their texts; empty if the data cannot be read by index."""
    if not hasattr(data, "__getitem__") or isinstance(data, dict):
        return []
    found: dict[Row, int] = {}
    for place, row in enumerate(data):
        found.setdefault(texts_of(row), place)
    return [found[row] for row in rows if row in found]
