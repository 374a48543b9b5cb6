"""The callback that keeps the state of a loss equal on all ranks, saves it and restores it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.common.ranks import sum_over_ranks, world_size
from lexforge.losses.base import load_loss_tensors, loss_parameters, loss_tensors
from lexforge.runs.state_file import StateFile, checkpoint_folder, resumed_folder

LOSS_STATE = StateFile("loss_state.safetensors", "lexforge-loss-state", "state of a loss")


class LossStateCallback(TrainerCallback):
    """Keep the state of a loss beside the model: prototypes, queues, momentum encoders.

    The trainers of sentence-transformers put the parameters of a loss into the optimizer and do nothing else
    for them. This callback, added to any of these trainers, does the rest, for any loss and for a dictionary
    of losses:

    - When training begins, the state of rank 0 is sent to all ranks.
    - Before each optimizer step, the gradients of the loss's own parameters are averaged over the ranks, as
      DistributedDataParallel does for the model's parameters, and clipped to `max_grad_norm` by their own
      norm. A norm over model and loss together is not possible, because the Trainer clips the gradients of
      the model before any callback is called. After the step the gradients are cleared, which
      sentence-transformers 6.0 does not do.
    - Each checkpoint gets a file `loss_state.safetensors`, written beside its place and renamed. The trials
      of a hyperparameter search get none, because they are not resumed.
    - A resumed run reads this file and continues as if it had not stopped. If the file is missing, the run
      stops, because a queue or prototypes that start anew would not be a resumed run.

    For a loss without state the callback does nothing.

    Args:
        loss: The loss that the trainer is given, or its dictionary of losses.
        checkpoint: The checkpoint that a run is resumed from. The default is `args.resume_from_checkpoint`
            if that names a folder, and otherwise `checkpoint-<step>` under `args.output_dir`. A callback does
            not see the argument of `Trainer.train`, so give the folder here if it lies elsewhere.

    Raises:
        TypeError: If the loss is a class or a function instead of a module.
        FileNotFoundError: If a resumed run finds no `loss_state.safetensors` in its checkpoint.
        ValueError: If a resumed run finds a file of another step or of another loss.
    """

    def __init__(
        self, loss: nn.Module | Mapping[str, nn.Module], checkpoint: str | Path | None = None
    ) -> None:
        if isinstance(loss, Mapping):
            loss = nn.ModuleDict(dict(loss))
        if not isinstance(loss, nn.Module):
            raise TypeError(
                f"LossStateCallback needs a loss that has been built with its model; received {loss!r}"
            )
        self.loss = loss
        self.checkpoint = checkpoint

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the state of a resumed run and make it equal on all ranks."""
        tensors = loss_tensors(self.loss)
        if not tensors:
            return
        if state.global_step:
            folder = self._resumed_folder(args, state)
            load_loss_tensors(self.loss, LOSS_STATE.read(folder, state.global_step))
        if world_size() > 1:
            for name in sorted(tensors):
                dist.broadcast(tensors[name].detach(), src=0)

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
        """Write the state beside the model of the checkpoint."""
        tensors = loss_tensors(self.loss)
        if not tensors or not state.is_world_process_zero or state.is_hyper_param_search:
            return
        LOSS_STATE.write(tensors, checkpoint_folder(args, state), state.global_step)

    def _resumed_folder(self, args: TrainingArguments, state: TrainerState) -> Path:
        folder = resumed_folder(args, state, self.checkpoint)
        if not (folder / LOSS_STATE.name).is_file():
            raise FileNotFoundError(
                f"{folder / LOSS_STATE.name} does not exist, and this run, resumed at step "
                f"{state.global_step}, needs the state of {type(self.loss).__name__} from it. If the "
                "checkpoint lies elsewhere, name it with LossStateCallback(loss, checkpoint=...); if its "
                "saving was cut off, resume from the checkpoint before it"
            )
        return folder


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
