"""What a resumed run needs: the same batches as before, the right epoch, and the command that resumes it."""

from __future__ import annotations

import logging
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from lexforge.runs.run_directory import read_json

# The file of a checkpoint that holds the training arguments as JSON.
ARGUMENTS = "training_args.json"
# The arguments that decide which rows the batches of the rest of a run hold.
BATCH_SETTINGS = (
    "world_size",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "seed",
    "data_seed",
)
_ROUNDING = 1e-9  # of an epoch
logger = logging.getLogger(__name__)


class ResumedRun(TrainerCallback):
    """Finds what the Trainer loses of a run that it resumes.

    It forgets a best checkpoint that is not where it was, as in a run whose folder was moved, and the next
    one to be deleted is that. On several ranks, inside an epoch, accelerate wraps the batch sampler twice,
    the Trainer looks through one of the two wrappers only, and the batches would be those of the first epoch.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Name the best checkpoint by its new place, if it is there."""
        if state.global_step == 0:  # not resumed
            return
        resumed = Path(str(args.resume_from_checkpoint))
        before = read_json(resumed / TRAINER_STATE_NAME) or {}
        if best := before.get("best_model_checkpoint"):
            # The one beside first: a copy does not depend on the run that it is a copy of.
            for place in (resumed.with_name(Path(best).name), Path(best)):
                if place.is_dir():
                    state.best_model_checkpoint = str(place)
                    break

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Unwrap the sampler of the training batches and set its epoch."""
        sampler: Any = getattr(kwargs["train_dataloader"], "batch_sampler", None)
        while hasattr(sampler, "batch_sampler"):
            sampler = sampler.batch_sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(int(state.epoch or 0))


def has_finished(state: TrainerState, args: TrainingArguments) -> bool:
    """Whether a state is that of a finished run, from which the Trainer would train on."""
    callbacks: Any = state.stateful_callbacks  # name -> what it had saved
    early = callbacks.get("EarlyStoppingCallback")
    if isinstance(early, dict):  # a list where the user has added several
        settings = early["args"] | early["attributes"]
        if settings["early_stopping_patience_counter"] >= settings["early_stopping_patience"]:
            return True
    if args.max_steps > 0:
        return state.global_step >= args.max_steps
    # A sum of fractions of an epoch is not exact; the number of steps is, but it is that of the earlier run.
    enough = (state.epoch or 0) >= args.num_train_epochs - _ROUNDING
    same = math.ceil(args.num_train_epochs) == state.num_train_epochs
    return enough and not (same and state.global_step < state.max_steps)


def changed_batches(checkpoint: Path, arguments: Mapping[str, Any]) -> list[str]:
    """How the batches of a resumed run differ from those of its beginning.

    Args:
        checkpoint: The checkpoint that the run is resumed from.
        arguments: The arguments of the resumed run, with its number of ranks under `world_size`.

    Returns:
        One clause for each argument that differs, such as "seed was 42 and is 7".
    """
    before = read_json(checkpoint / ARGUMENTS) or {}
    return [
        f"{name} was {before[name]} and is {arguments[name]}"
        for name in BATCH_SETTINGS
        if name in before and before[name] != arguments[name]
    ]


def resume_command(checkpoint: Path) -> str:
    """The command that resumes a run from its last checkpoint.

    Args:
        checkpoint: A checkpoint of the run.

    Returns:
        The command that `lexforge.runs.claim_run_directory` recorded, followed by `--resume`, and by the
        folder if the run was moved or copied since; without such a record the call of `train` in Python.
    """
    folder = checkpoint.parent
    run = read_json(folder / "env.json")
    if run is None:
        return f"trainer.train(resume_from_checkpoint={str(checkpoint)!r})"
    settings = read_json(folder / "config.json") or {}
    moved: list[str] = []
    for name in ("output_dir", "output"):  # of a recipe, and of `lexforge adapt`
        if name in settings and Path(settings[name]).resolve() != folder.resolve():
            moved = [f"--{name.replace('_', '-')}", str(folder)]  # the last one counts
    return shlex.join([*run["command"], "--resume", *moved])
