"""What a checkpoint holds beside the model and the optimizer: one file, with the state of each part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.common.ranks import of_all_ranks, sum_over_ranks, world_size
from lexforge.kernels.splade_head.triton import tiles
from lexforge.losses.base import load_loss_tensors, loss_parameters, loss_tensors
from lexforge.losses.memory import RowsThatFit
from lexforge.runs.checkpoint_folders import step_of
from lexforge.storage import timings
from lexforge.storage.tensors import read_tensors, write_tensors

STATE_FILE = "run_state.safetensors"
FORMAT = "lexforge-run-state"


class Stateful(Protocol):
    """A part of a training that a resumed run must have as it was."""

    def state(self) -> Mapping[str, Any]:
        """Return what to keep: name -> tensor, or value in JSON types; empty if there is nothing yet.

        All ranks call this together, so that a state may be gathered from them.
        """
        ...

    def load_state(self, state: Mapping[str, Any], /) -> None:
        """Take what `state` of an earlier process returned; its tensors are on the CPU."""
        ...


# Ranks time their kernels for themselves, so that each has its own choices. The choices agree up to the last
# digits of float32 sums: to round as the run that it continues, a resumed run must not choose anew.
OF_EACH_RANK: dict[str, Stateful] = {"timings": timings, "triton_tiles": tiles}


class RunStateCallback(TrainerCallback):
    """Keep in each checkpoint what a resumed run needs beside the model and the optimizer.

    This is the state of the loss (prototypes, queues, momentum encoders), of further parts, and what each
    rank has measured: the times of its SPLADE head, and the memory for `mini_batch_size="auto"`. The trainers
    of sentence-transformers put the parameters of a loss into the optimizer and do nothing else for them.
    This callback, added to any of these trainers, does the rest, for any loss and for a dictionary of losses:

    - When training begins, the state of the loss of rank 0 is sent to all ranks.
    - Before each optimizer step, the gradients of the loss's own parameters are averaged over the ranks, as
      DistributedDataParallel does for the model's parameters, and clipped to `max_grad_norm` by their own
      norm. A norm over model and loss together is not possible, because the Trainer clips the gradients of
      the model before any callback is called. After the step the gradients are cleared, which
      sentence-transformers 6.0 does not do.
    - Each checkpoint gets a file `run_state.safetensors`, written beside its place and renamed. It is not
      written where there is nothing to keep, nor for the trials of a hyperparameter search, which are not
      resumed.
    - A resumed run reads this file and continues as if it had not stopped. If the file is missing, the run
      stops, because a queue or prototypes that start anew would not be a resumed run. The checkpoint is
      `args.resume_from_checkpoint` if that names a folder, and otherwise `checkpoint-<step>` under
      `args.output_dir`: a callback does not see the argument of `Trainer.train`.

    A trainer adds to the attribute `parts` what else is to be kept: name -> an object with the methods of
    `Stateful`, `state` and `load_state`, the same on all ranks. A resumed run needs each of them in the file.

    Args:
        loss: The loss that the trainer is given, or its dictionary of losses.

    Raises:
        TypeError: If the loss is a class or a function instead of a module.
        FileNotFoundError: If a resumed run needs a state and finds no `run_state.safetensors`.
        ValueError: If the name of a data set cannot be that of a module; or if a resumed run finds a file
            that is damaged, of another step, of another loss, or that lacks a part.
    """

    def __init__(self, loss: nn.Module | Mapping[str, nn.Module]) -> None:
        if isinstance(loss, Mapping):
            try:
                loss = nn.ModuleDict(dict(loss))
            except KeyError as error:  # the optimizer of sentence-transformers has the same limit
                raise ValueError(
                    "a data set with a loss of its own needs a name without dots that is no attribute of a "
                    f"module of torch: {error.args[0]}; received {list(loss)}"
                ) from error
        if not isinstance(loss, nn.Module):
            raise TypeError(
                f"RunStateCallback needs a loss that has been built with its model; received {loss!r}"
            )
        self.loss = loss
        self.parts: dict[str, Stateful] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the state of a resumed run, and make that of the loss equal on all ranks."""
        if state.global_step:
            self._restore(self._resumed_folder(args, state), state.global_step, args.process_index)
        if world_size() > 1:
            for _, tensor in sorted(loss_tensors(self.loss).items()):
                dist.broadcast(tensor.detach(), src=0)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Average the gradients of the loss's own parameters over the ranks, and clip them."""
        parameters = loss_parameters(self.loss)
        if parameters and world_size() > 1:
            _average_gradients(parameters)
        if parameters and args.max_grad_norm > 0:
            nn.utils.clip_grad_norm_(parameters, args.max_grad_norm)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Clear the gradients, which the Trainer's `model.zero_grad()` does not reach."""
        for parameter in loss_parameters(self.loss):
            parameter.grad = None

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the state beside the model of the checkpoint; every rank must call this."""
        if state.is_hyper_param_search:
            return
        parts = self.states()
        ranks = of_all_ranks({name: dict(part.state()) for name, part in self._parts_of_each_rank().items()})
        if not state.is_world_process_zero or not (parts or any(any(own.values()) for own in ranks)):
            return
        tensors: dict[str, Tensor] = {}
        values: dict[str, dict[str, Any]] = {}
        for name, found in parts.items():
            values[name] = {key: value for key, value in found.items() if not isinstance(value, Tensor)}
            tensors |= {f"{name}/{key}": found[key] for key in found.keys() - values[name].keys()}
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        fields = {"global_step": state.global_step, "values": values, "ranks": ranks}
        write_tensors(folder / STATE_FILE, FORMAT, fields, tensors)

    def load_loss(self, checkpoint: Path) -> None:
        """Give the loss the state that it had in a checkpoint; for a loss without a state nothing is read.

        Args:
            checkpoint: The folder `checkpoint-<step>`.

        Raises:
            ValueError: As for a resumed run.
        """
        if loss_tensors(self.loss):
            load_loss_tensors(self.loss, read_state(checkpoint, step_of(checkpoint))[0]["loss"])

    def states(self) -> dict[str, Mapping[str, Any]]:
        """Return what a checkpoint would keep now of each part, by its name; every rank must call this."""
        return {name: part.state() for name, part in self._kept_parts().items()}

    def _kept_parts(self) -> dict[str, Stateful]:
        """The parts, with the loss if it has a state."""
        return ({"loss": _LossPart(self.loss)} if loss_tensors(self.loss) else {}) | self.parts

    def _parts_of_each_rank(self) -> dict[str, Stateful]:
        """What each rank chooses for itself, with what its losses have measured of the memory."""
        found = {name: getattr(module, "rows_that_fit", None) for name, module in self.loss.named_modules()}
        return OF_EACH_RANK | {
            f"rows_that_fit/{name}": part for name, part in found.items() if isinstance(part, RowsThatFit)
        }

    def _restore(self, folder: Path, step: int, rank: int) -> None:
        """Give each part its state of a checkpoint; a rank that the run did not have chooses for itself."""
        parts = self._kept_parts()
        if not (folder / STATE_FILE).is_file():
            if parts:
                raise FileNotFoundError(
                    f"{folder / STATE_FILE} does not exist, and this run, resumed at step {step}, needs the "
                    f"state of {', '.join(parts)} from it. If the checkpoint lies elsewhere, name it in the "
                    "training arguments too (resume_from_checkpoint=...); if its saving was cut off, resume "
                    "from the checkpoint before it; if the run began with other settings, resume with those"
                )
            return
        found, ranks = read_state(folder, step)
        if missing := sorted(parts.keys() - found.keys()):
            raise ValueError(
                f"{folder / STATE_FILE} holds the state of {', '.join(found) or 'nothing'}, and this run "
                f"needs that of {', '.join(missing)}: resume with the settings that the run began with"
            )
        for name, part in parts.items():
            part.load_state(found[name])
        chosen = ranks[rank] if rank < len(ranks) else {}
        for name, part in self._parts_of_each_rank().items():
            if chosen.get(name):
                part.load_state(chosen[name])

    def _resumed_folder(self, args: TrainingArguments, state: TrainerState) -> Path:
        named = args.resume_from_checkpoint
        if isinstance(named, str) and Path(named).is_dir():
            return Path(named)
        return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"


def read_state(checkpoint: Path, step: int) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Read what `RunStateCallback` wrote into a checkpoint.

    Args:
        checkpoint: The folder of the checkpoint.
        step: The step at which it must have been saved.

    Returns:
        Name of a part -> its state; and for each rank, the same of the parts that each rank has of its own.

    Raises:
        ValueError: If the file is missing, damaged, of another format or of another step.
    """
    file = checkpoint / STATE_FILE
    try:
        fields, tensors = read_tensors(file, FORMAT)
    except ValueError as error:
        raise ValueError(f"{file} is cut, altered or no state of a run: {error}") from error
    if fields["global_step"] != step:
        raise ValueError(
            f"{file} was saved at step {fields['global_step']}, and the run resumes at step {step}"
        )
    parts: dict[str, dict[str, Any]] = fields["values"]
    for name, tensor in tensors.items():
        part, _, key = name.partition("/")
        parts[part][key] = tensor
    return parts, fields["ranks"]


class _LossPart:
    """The state of a loss as a part of the file."""

    def __init__(self, loss: nn.Module) -> None:
        self.loss = loss

    def state(self) -> dict[str, Tensor]:
        return loss_tensors(self.loss)

    def load_state(self, state: Mapping[str, Any]) -> None:
        load_loss_tensors(self.loss, state)


def _average_gradients(parameters: list[nn.Parameter]) -> None:
    """Set each gradient to its mean over the ranks.

    A rank without a gradient counts as zero; a parameter without a gradient on any rank stays without one.
    """
    present = torch.tensor([parameter.grad is not None for parameter in parameters]).float()
    present = sum_over_ranks(present.to(parameters[0].device))
    for parameter, ranks in zip(parameters, present.tolist(), strict=True):
        if ranks:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = sum_over_ranks(gradient.detach()) / world_size()
