"""Where numbers break: which part, gradient or parameter, on which rows, and what is left to go back to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from sentence_transformers.base.trainer import BaseTrainer
from torch import Tensor
from torch.nn.utils import get_total_norm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.common.ranks import world_size
from lexforge.losses.queue import NonFiniteKeysError
from lexforge.runs.checkpoints import last_checkpoint
from lexforge.training.sharded import whole_tensor

ROWS_KEY = "lexforge_rows"  # of a batch: its rows' texts, one tuple a row
SHOWN_ROWS, SHOWN_LETTERS = 8, 40
Row = tuple[str, ...]


class NonFiniteError(RuntimeError):
    """A part of the loss, a gradient or a parameter became NaN or infinite; training stopped."""


class FiniteTraining(BaseTrainer):
    """Mixed into a sentence-transformers trainer: stop at the first number that is NaN or infinite.

    Looked at are the loss of every micro-batch, the gradients of every step before the optimizer takes them,
    and the parameters after it, those of the loss (prototypes) included; so no checkpoint holds a broken
    parameter. The error names what broke, the rows of the batch, found in the training data if the collator
    sent them along as `SpladeCollator` does, and the last whole checkpoint. On several ranks all stop, and
    the error tells of every rank that saw it.

    Under fp16 a gradient beyond the range is no error: the scaler skips the step and halves its scale. Once
    the scale has fallen below 1 the range is not the reason any more, and the run stops.

    Raises:
        NonFiniteError: By `train` and `evaluate`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._parts: dict[str, Tensor] = {}  # of the last loss that came in parts
        self._rows: list[Row] = []  # of the step under way
        self.add_callback(_ParameterCheck(self))

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward of one micro-batch; before the optimizer's step, look at the gradients."""
        self._rows += inputs.get(ROWS_KEY, ())
        loss = super().training_step(model, inputs, *args, **kwargs)
        if self.accelerator.sync_gradients and not self._scaler_will_skip():
            gradients = ((name, p.grad) for name, p in self._named_parameters() if p.grad is not None)
            self._stop_unless_finite("the gradient of", gradients)
        return loss

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The loss; if it is not finite, its parts that are not."""
        rows = inputs.pop(ROWS_KEY, [])
        self._parts = {}
        try:
            result = super().compute_loss(model, inputs, *args, **kwargs)
        except NonFiniteKeysError:  # on every rank: the keys are those of all
            self._stop_run(["the keys of the queue"], rows)
        loss = (result[0] if isinstance(result, tuple) else result).detach()
        if _on_any_rank(not bool(torch.isfinite(loss)), loss.device):
            parts = self._parts or {"the loss": loss}
            broken = [name for name, part in parts.items() if not torch.isfinite(part)]
            if not broken and not torch.isfinite(loss):
                broken = ["the sum of " + ", ".join(parts)]
            self._stop_run(broken, rows)
        return result

    def track_loss_components(self, loss: dict[str, Tensor]) -> None:
        """Keep the parts at hand for the error; what is logged does not change."""
        self._parts = {name: part.detach() for name, part in loss.items()}
        super().track_loss_components(loss)

    def check_parameters(self) -> None:
        """Stop if the optimizer's step broke a parameter; called before anything is saved.

        Raises:
            NonFiniteError: With the parameter's name.
        """
        self._stop_unless_finite("", self._named_parameters(), parameters=True)
        self._rows = []

    def _named_parameters(self) -> list[tuple[str, Tensor]]:
        """Parameters that are trained, of the model and of the loss; each once."""
        found: dict[Tensor, str] = {}
        losses = self.loss.values() if isinstance(self.loss, dict) else [self.loss]
        for owner in (self.model, *losses):
            for name, parameter in owner.named_parameters():
                if parameter.requires_grad:
                    found.setdefault(parameter, name)
        return [(name, parameter) for parameter, name in found.items()]

    def _stop_unless_finite(
        self, prefix: str, tensors: Iterable[tuple[str, Tensor]], *, parameters: bool = False
    ) -> None:
        named = [(name, tensor.detach()) for name, tensor in tensors]
        # One pass over all; finite if each entry is.
        norm = whole_tensor(get_total_norm([tensor for _, tensor in named]))
        if not _on_any_rank(not bool(torch.isfinite(norm)), norm.device):
            return
        broken = [f"{prefix} {name}".strip() for name, tensor in named if not _is_finite(tensor)]
        if not broken and not parameters and not torch.isfinite(norm):
            broken = ["the norm of the gradients"]  # each entry is finite, the sum of squares is not
        if _on_any_rank(bool(broken), norm.device):
            self._stop_run(broken, self._rows, parameters=parameters)

    def _scaler_will_skip(self) -> bool:
        scaler = getattr(self.accelerator, "scaler", None)
        return scaler is not None and scaler.get_scale() >= 1

    def _stop_run(self, broken: Sequence[str], rows: Sequence[Row], *, parameters: bool = False) -> NoReturn:
        """Raise on every rank, telling of all that saw something broken."""
        ranks: list[Any] = [(list(broken), self._describe(rows))]
        if world_size() > 1:
            own, ranks = ranks[0], [None] * world_size()
            dist.all_gather_object(ranks, own)
        seen = [
            f"{', '.join(names)} became NaN or infinite"
            + (f" on rank {rank}" if len(ranks) > 1 else "")
            + f" with {described}"
            for rank, (names, described) in enumerate(ranks)
            if names
        ]
        when = f"in the step after {self.state.global_step}"
        if parameters:
            when = f"by the optimizer in step {self.state.global_step}"
        elif not self.model.training:
            when = "in evaluation"
        elif self._model_is_finite():
            self._save_checkpoint(self.model, trial=None)
        raise NonFiniteError(
            f"{'; '.join(seen)}, {when}. The last good checkpoint is "
            f"{last_checkpoint(str(self.args.output_dir)) or 'none'}. Lower the learning rate or the weight "
            "of that term, or look at those rows"
        )

    def _model_is_finite(self) -> bool:
        finite = all(_is_finite(parameter) for _, parameter in self._named_parameters())
        return not _on_any_rank(not finite, self.args.device)

    def _describe(self, rows: Sequence[Row]) -> str:
        """The rows by their place in the training data, and the beginning of their first texts."""
        if not rows:
            return "rows that the data collator does not name"
        places = self._places(rows) if self.model.training else []
        numbers = f" {', '.join(map(str, places))} of the training data" if places else f": {len(rows)} rows"
        texts = ", ".join(repr(row[0][:SHOWN_LETTERS]) for row in rows[:SHOWN_ROWS])
        return f"rows{numbers} ({texts}{', ...' if len(rows) > SHOWN_ROWS else ''})"

    def _places(self, rows: Sequence[Row]) -> list[int]:
        """Indices of rows in the training data, by their texts; empty where the data cannot be read again."""
        data: Any = self.train_dataset
        if not hasattr(data, "__getitem__") or isinstance(data, dict):
            return []
        found: dict[Row, int] = {}
        for place, row in enumerate(data):
            found.setdefault(texts_of(row), place)
        return [found[row] for row in rows if row in found]


class _ParameterCheck(TrainerCallback):
    """Looks at the parameters after each optimizer step, before anything is saved."""

    def __init__(self, trainer: FiniteTraining) -> None:
        self.trainer = trainer

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.check_parameters()


def texts_of(row: dict[str, Any]) -> Row:
    """The texts of a row, in the order of its columns."""
    return tuple(value for value in row.values() if isinstance(value, str))


def _is_finite(tensor: Tensor) -> bool:
    """Whether every entry is; of a tensor in shards, on every rank, which all must ask."""
    return bool(torch.isfinite(whole_tensor(tensor)).all())


def _on_any_rank(flag: bool, device: torch.device) -> bool:
    """Whether a flag is set on any rank: all must stop, or the others wait for ever."""
    if world_size() == 1:
        return flag
    number = torch.tensor(float(flag), device=device)
    dist.all_reduce(number, op=dist.ReduceOp.MAX)
    return bool(number)
