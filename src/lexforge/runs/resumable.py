"""Training that survives interruptions, and the one file that touches private methods of the Trainer.

The Trainer offers no public way to write a checkpoint as a whole, so four of its private methods are
overridden here and two are called. `tests/runs/test_private_trainer.py` fails if a release of
transformers or sentence-transformers changes what this file relies on:

- overridden: `_save_checkpoint`, `_load_from_checkpoint`, `_load_best_model`,
  `_save_optimizer_and_scheduler`;
- called: `_get_output_dir`, `_push_from_checkpoint`;
- replaced: the `callback_handler`, by one that does not call `on_save` a second time.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.base.trainer import BaseTrainer
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_callback import CallbackHandler, ProgressCallback
from transformers.trainer_utils import TrainOutput

from lexforge.common.ranks import over_ranks, world_size
from lexforge.runs.checkpoint_folders import UNFINISHED, check_seal, last_checkpoint, new_checkpoint, rotate
from lexforge.runs.log_file import LogFile, LogLines, LogLinesAboveBar
from lexforge.runs.run_directory import complete_environment, read_json, resume_command, write_json
from lexforge.runs.sharded import ShardedCopy
from lexforge.runs.signals import StopRequest, TrainingInterrupted
from lexforge.runs.state import RunStateCallback

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
# A callback of the Trainer that shows the log -> what shows shorter lines instead.
LINES = {PrinterCallback: LogLines, ProgressCallback: LogLinesAboveBar}
logger = logging.getLogger(__name__)


class ResumableTraining(BaseTrainer):
    """Mixed into a sentence-transformers trainer: checkpoints that are whole or absent, and an orderly stop.

    - A checkpoint, with what the callbacks write in `on_save`, is written beside its place, sealed with a
      checksum of every file, and then renamed. Callbacks write to `<args.output_dir>/checkpoint-<step>` as
      they do in any trainer; during the call `args.output_dir` names the folder beside.
    - `train(resume_from_checkpoint=...)` checks the seal first. The value `True` takes the newest checkpoint
      that is whole, and starts from the beginning if there is none.
    - After a SIGTERM or a SIGINT the trainer finishes the step, saves, prints the command that resumes the
      run and ends the process.
    - The checkpoint of the highest step is always the last one written: checkpoints of later steps, which an
      abandoned run left, are moved to `abandoned/`. `save_total_limit` keeps the newest checkpoints and the
      best one, also when training ends.
    - If a checkpoint does not fit on the disk, the error says how many bytes are missing, and the earlier
      checkpoints stay.
    - The log is written to `log.jsonl` in the output folder while training goes on (`LogFile`).
    - Each checkpoint holds the state of the losses, equal on all ranks, and of what is added to
      `run_state.parts` (`RunStateCallback`).
    - No pickled object of lexforge is written: the training arguments are saved as JSON.
    - Under FSDP2 a sharded copy of the model is trained, and the whole model is saved (`ShardedCopy`).

    Raises:
        ValueError: If the settings are not supported under FSDP2 or another way of sharding; see
            `ShardedCopy`.
        DamagedCheckpointError: If `train` is to resume from a checkpoint that is not whole.
        DiskFullError: If a checkpoint that `train` writes does not fit on the disk.
        TrainingInterrupted: If a signal reached any rank during `train`; raised on every rank.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sharded = ShardedCopy(self)
        self._stop = StopRequest()
        self._resumed = _ResumedRun()
        self._given: dict[str, Any] = {}  # the user's values of arguments that are replaced for the moment
        self._newest: Path | None = None  # the last checkpoint that this training wrote
        self._newest_state: object = None  # what the trainer knew when it did
        self.run_state = RunStateCallback(self.loss)
        self.add_callback(self.run_state)
        self.add_callback(self._stop)
        self.add_callback(self._resumed)
        self.add_callback(LogFile())
        for callback in list(self.callback_handler.callbacks):
            if type(callback) in LINES:  # the Trainer adds one of them, by `disable_tqdm`
                self.remove_callback(callback)
                self.add_callback(LINES[type(callback)]())
        self.callback_handler = _SavesOnce(self.callback_handler)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> TrainOutput:
        """Train from the beginning or from a checkpoint.

        Args:
            resume_from_checkpoint: The path of a checkpoint, or True for the newest one that is whole.
            *args: The other arguments of `Trainer.train`.
            **kwargs: The other arguments of `Trainer.train`.

        Returns:
            The result of `Trainer.train`; for a checkpoint of a run that has finished, its step and a loss of
            0, with the model as training left it.
        """
        checkpoint = self._find_checkpoint(resume_from_checkpoint)
        if checkpoint is not None:
            self.args.resume_from_checkpoint = str(checkpoint)  # callbacks restore themselves from it
            changed = changed_batches(checkpoint, self._argument_record())
            if changed and self.is_world_process_zero():
                logger.warning(
                    f"the run resumed from {checkpoint} does not go on as it began: {', '.join(changed)}"
                )
            state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
            if has_finished(state, self.args):
                return self._restore_finished(checkpoint, state)
        else:
            self.begin_anew()
        self._stop.number = 0
        self._newest = None
        # At the end of training the Trainer would delete the newest checkpoint in favour of the best, so the
        # limit is hidden from it; `_save_checkpoint` applies it.
        sharded = self.sharded.in_training(checkpoint, self._load_from_checkpoint)
        with self._stop, self._replaced(save_total_limit=None), sharded:
            output = super().train(str(checkpoint) if checkpoint else None, *args, **kwargs)
        if self.is_world_process_zero():
            complete_environment(Path(str(self.args.output_dir)))
        # A signal may have reached one rank after its last step.
        self._stop.number = over_ranks(self._stop.number, self.args.device, "MAX")
        if self._stop.number:
            self._leave()
        return output

    def begin_anew(self) -> None:
        """Called before a training that resumes from no checkpoint, with the model that is to be trained."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate the whole model, also while shards of it are trained."""
        with self.sharded.whole_in_place(self.args.device):
            return super().evaluate(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the whole model, with the training arguments as JSON.

        Under FSDP2 every rank must call this, because every rank holds a share of the model. One rank per
        folder writes: transformers 5.23 would let every rank write the model of sentence-transformers.
        """
        with self.sharded.whole_in_place("cpu"):
            if self.args.should_save:
                super().save_model(output_dir, _internal_call)
                folder = Path(str(output_dir or self.args.output_dir))
                (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # a pickled object that nothing reads
                write_json(folder / ARGUMENTS, self._argument_record())

    def autocast_smart_context_manager(self, *args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
        """Autocast; accelerate does so itself for a model that it wraps, but not for one that it shards."""
        if self.sharded.whole is None:
            return super().autocast_smart_context_manager(*args, **kwargs)
        return self.accelerator.autocast()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write the checkpoint of this step, unless it has been written and nothing is known beyond it.

        The same step is asked for twice if a signal or an error came at the end of an epoch.
        """
        run = Path(self._get_output_dir(trial))
        place = run / f"checkpoint-{self.state.global_step}"
        known = (len(self.state.log_history), self.state.best_metric)
        if self._newest == place and self._newest_state == known:
            return
        # Uploads run in the background, so they wait until the checkpoint has its name.
        with self._replaced(output_dir=str(run / UNFINISHED), push_to_hub=False):
            staged = Path(self._get_output_dir(trial)) / place.name
            with new_checkpoint(
                staged,
                place,
                size=self.checkpoint_bytes(),
                writes=self.args.should_save,
                wait=self.accelerator.wait_for_everyone,
            ):
                super()._save_checkpoint(model, trial)
                self.control = self.callback_handler.call_event(
                    "on_save", self.args, self.state, self.control
                )
                self._name_best(staged, place)
        self._newest, self._newest_state = place, known
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(place))
        if self.args.should_save:
            limit = self._given.get("save_total_limit", self.args.save_total_limit)
            rotate(run, limit, self.state.best_model_checkpoint)

    def _load_from_checkpoint(self, checkpoint_path: str, model: Any = None) -> None:
        """Load the model, except into shards: they were copied from a model that had been loaded."""
        if self.sharded.whole is None:
            super()._load_from_checkpoint(checkpoint_path)

    def _load_best_model(self) -> None:
        """Load the best model, and the state of the loss that was trained with it.

        Raises:
            FileNotFoundError: If there is no such checkpoint, which the parent would only log.
        """
        best = Path(str(self.state.best_model_checkpoint))
        if not best.is_dir():
            raise FileNotFoundError(f"the best checkpoint {best} is not there")
        super()._load_best_model()
        self.run_state.load_loss(best)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save both; under FSDP2 the Trainer would also save the sharded model a second time."""
        if self.sharded.whole is None:
            super()._save_optimizer_and_scheduler(output_dir)
        else:
            self.sharded.save_optimizer_and_scheduler(output_dir)

    def _find_checkpoint(self, resume_from_checkpoint: str | bool | None) -> Path | None:
        """The checkpoint that the argument of `train` asks for, checked against its seal."""
        if resume_from_checkpoint is True:
            newest = last_checkpoint(str(self.args.output_dir))
            return Path(newest) if newest else None
        if not resume_from_checkpoint:
            return None
        check_seal(resume_from_checkpoint)
        return Path(resume_from_checkpoint)

    def _restore_finished(self, checkpoint: Path, state: TrainerState) -> TrainOutput:
        """Restore what the end of training left: the model, or the best one, and the state of the loss."""
        self.state = state
        self.state.is_local_process_zero = self.is_local_process_zero()
        self.state.is_world_process_zero = self.is_world_process_zero()
        self._load_from_checkpoint(str(checkpoint))
        for callback in (self.run_state, self._resumed):
            callback.on_train_begin(self.args, self.state, self.control)
        if self.args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._load_best_model()
        return TrainOutput(self.state.global_step, 0.0, {})

    def _leave(self) -> None:
        """End the process after a signal, with the command that resumes the run."""
        checkpoint = self._newest or Path(str(self.args.output_dir))
        if self.is_world_process_zero():
            print(
                f"\nstopped by a signal after step {self.state.global_step}; saved {checkpoint}\n"
                f"resume: {resume_command(checkpoint)}",
                file=sys.stderr,
                flush=True,
            )
        raise TrainingInterrupted(self._stop.number, str(checkpoint), self.state.global_step)

    def _name_best(self, staged: Path, place: Path) -> None:
        """If this checkpoint is the best one, record it by the name that it is about to get."""
        if self.state.best_model_checkpoint == str(staged):
            self.state.best_model_checkpoint = str(place)
            if self.args.should_save:
                self.state.save_to_json(str(staged / TRAINER_STATE_NAME))

    @contextmanager
    def _replaced(self, **arguments: Any) -> Iterator[None]:
        """Training arguments that the Trainer finds with other values for the moment."""
        given = {name: getattr(self.args, name) for name in arguments}
        self._given |= given
        try:
            for name, value in arguments.items():
                setattr(self.args, name, value)
            yield
        finally:
            for name, value in given.items():
                setattr(self.args, name, value)
                del self._given[name]

    def _argument_record(self) -> dict[str, Any]:
        """The user's training arguments in JSON types, with the number of ranks under `world_size`."""
        return self.args.to_sanitized_dict() | self._given | {"world_size": world_size()}

    def checkpoint_bytes(self) -> int:
        """The least size of a checkpoint: parameters, tied ones once, and the states of optimizer and run.

        Every rank must call this.
        """
        states = [*getattr(self.optimizer, "state", {}).values(), *self.run_state.states().values()]
        values = [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
        return sum(tensor.numel() * tensor.element_size() for tensor in [*self.model.parameters(), *values])


class _ResumedRun(TrainerCallback):
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


class _SavesOnce(CallbackHandler):
    """The handler of a trainer's callbacks, without the call of `on_save` that follows a checkpoint.

    `ResumableTraining._save_checkpoint` has called the callbacks before the checkpoint was sealed.

    Args:
        other: The handler that this one replaces.
    """

    def __init__(self, other: CallbackHandler) -> None:
        super().__init__(
            other.callbacks, other.model, other.processing_class, other.optimizer, other.lr_scheduler
        )

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Note that the checkpoint is saved, as the stock handler does, and call nobody."""
        control.should_save = False
        return control


def save_now(trainer: BaseTrainer) -> None:
    """Save a checkpoint of this step, as the Trainer does when one is due; every rank must call this.

    Args:
        trainer: Any trainer of sentence-transformers, while it trains.
    """
    trainer._save_checkpoint(trainer.model, trial=None)
    trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)


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
