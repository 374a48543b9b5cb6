"""What makes a run of any sentence-transformers trainer survive its interruptions."""

from __future__ import annotations

import copy
import json
import logging
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import TrainOutput

from lexforge.common.ranks import world_size
from lexforge.runs.checkpoints import (
    UNFINISHED,
    DiskFullError,
    check_seal,
    disk_full,
    last_checkpoint,
    publish,
    remove_unfinished,
    rotate,
    set_aside_after,
    size_of,
)
from lexforge.runs.loss_state import LossStateCallback
from lexforge.runs.run_directory import write_json
from lexforge.runs.signals import StopRequest, TrainingInterrupted
from lexforge.training.sharded import ShardedTraining

ARGUMENTS = "training_args.json"
# Arguments of which the batches of the rest of a run are made.
BATCHES = ("world_size", "per_device_train_batch_size", "gradient_accumulation_steps", "seed", "data_seed")
logger = logging.getLogger(__name__)


class ResumableTraining(ShardedTraining):
    """Mixed into a sentence-transformers trainer: whole checkpoints or none, and an orderly stop.

    - A checkpoint, with what the callbacks write in `on_save`, is made beside its place, sealed with a
      checksum of every file, and then renamed. Callbacks find it where they always do, as
      `<args.output_dir>/checkpoint-<step>`, with `args.output_dir` pointing beside the run for that call.
    - `train(resume_from_checkpoint=...)` checks the seal first. `True` takes the newest checkpoint that is
      whole and starts from the beginning where there is none.
    - SIGTERM or SIGINT lets the step finish, saves, names the command that resumes and ends the process.
    - The checkpoint of the highest step is always the last one written: what an abandoned run left of later
      steps is moved to `abandoned/`. `save_total_limit` keeps the newest and the best, also at the end.
    - A checkpoint that does not fit on the disk says how much is missing; earlier ones stay.
    - No pickled object of ours is written: the training arguments are saved as JSON.

    Raises:
        ValueError: As `ShardedTraining` does.
        DamagedCheckpointError: By `train`, for a checkpoint that is not whole.
        DiskFullError: By `train`, for a checkpoint that does not fit.
        TrainingInterrupted: By `train`, on every rank, after a signal.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stop = StopRequest()
        self._limit = self.args.save_total_limit
        self._beside: Path | None = None  # where checkpoints are written, while one is
        self._newest: Path | None = None  # the last checkpoint that this training published
        self._newest_state: object = None  # what the trainer knew when it did
        self.add_callback(_StopCallback(self._stop))
        self.add_callback(_SamplerEpoch())
        self.callback_handler.on_save = self._callbacks_have_saved  # type: ignore[method-assign]

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> TrainOutput:
        """Train, from a checkpoint if asked; see the class."""
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            checkpoint = last_checkpoint(str(self.args.output_dir))
        elif checkpoint:
            check_seal(checkpoint)
        if checkpoint:
            self.args.resume_from_checkpoint = str(checkpoint)  # for callbacks that read from it
            self._compare_batches(Path(checkpoint))
        if checkpoint and self._has_finished(Path(checkpoint)):
            return self._restore_finished(checkpoint)
        self._stop.number = 0
        self._newest = None
        with self._stop, self._limit_hidden():
            output = super().train(checkpoint or None, *args, **kwargs)
        if self._stop.number:
            self._leave()
        if self.state.global_step < self.args.max_steps and not self.control.should_training_stop:
            logger.warning(
                f"trained {self.state.global_step} of {self.args.max_steps} steps: the batch sampler yielded "
                "fewer batches than its length promised (before sentence-transformers 6.2, no_duplicates "
                "where rows share a text). Upgrade, lower the batch size or ask for more steps"
            )
        return output

    def _has_finished(self, checkpoint: Path) -> bool:
        """Whether the last step was taken before; the Trainer would take one more."""
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        if self.args.max_steps > 0:
            finished = state.global_step >= self.args.max_steps
        else:
            finished = (state.epoch or 0) >= self.args.num_train_epochs
        if finished:
            self.state = state
        return finished

    def _restore_finished(self, checkpoint: str) -> TrainOutput:
        """What the end of training left: the model, or the best one, and the state of the loss."""
        self.state.is_local_process_zero = self.is_local_process_zero()
        self.state.is_world_process_zero = self.is_world_process_zero()
        self._load_from_checkpoint(checkpoint)
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, LossStateCallback):
                callback.on_train_begin(self.args, self.state, self.control)
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        return TrainOutput(self.state.global_step, 0.0, {})

    def _compare_batches(self, checkpoint: Path) -> None:
        """Warn where the rest of the run would have other batches than its beginning."""
        file = checkpoint / ARGUMENTS
        before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        now = self._arguments()
        changed = [name for name in BATCHES if name in before and before[name] != now[name]]
        if changed and self.is_world_process_zero():
            said = ", ".join(f"{name} was {before[name]} and is {now[name]}" for name in changed)
            logger.warning(f"the run resumed from {checkpoint} does not go on as it began: {said}")

    def _arguments(self) -> dict[str, Any]:
        """The training arguments in JSON types, and what decides about the batches beside them."""
        given = self.args.to_sanitized_dict() | {"save_total_limit": self._limit}
        return given | {"world_size": world_size()}

    @contextmanager
    def _limit_hidden(self) -> Iterator[None]:
        """Hide `save_total_limit`: in the end the Trainer would delete the newest checkpoint for the best."""
        self._limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            yield
        finally:
            self.args.save_total_limit = self._limit

    def _leave(self) -> None:
        checkpoint = self._newest or Path(str(self.args.output_dir))
        if self.is_world_process_zero():
            print(
                f"\nstopped by a signal after step {self.state.global_step}; saved {checkpoint}\n"
                f"resume: {_resume_command(checkpoint)}",
                file=sys.stderr,
                flush=True,
            )
        raise TrainingInterrupted(self._stop.number, str(checkpoint), self.state.global_step)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._beside or super()._get_output_dir(trial))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run = Path(super()._get_output_dir(trial))
        place = run / f"checkpoint-{self.state.global_step}"
        known = (len(self.state.log_history), self.state.best_metric)
        if self._newest == place and self._newest_state == known:  # a signal, an error or an epoch's end
            return
        if self.args.should_save:
            run.mkdir(parents=True, exist_ok=True)
            remove_unfinished(run)
            if message := disk_full(run, self._checkpoint_bytes()):
                raise DiskFullError(message)
        self.accelerator.wait_for_everyone()
        self._beside = run / UNFINISHED
        try:
            super()._save_checkpoint(model, trial)
            self._save_callbacks()
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                self._name_best(place)
                set_aside_after(place)
                publish(self._beside / place.name, place)
        except Exception as error:  # the writers of a full disk raise OSError, RuntimeError, SafetensorError
            message = disk_full(run, self._checkpoint_bytes(), size_of(self._beside), error)
            shutil.rmtree(self._beside, ignore_errors=True)
            if message:
                raise DiskFullError(message) from error
            raise
        finally:
            self._beside = None
        self.accelerator.wait_for_everyone()
        self._newest, self._newest_state = place, known
        if self.args.push_to_hub:
            super()._push_from_checkpoint(str(place))
        if self.args.should_save:
            rotate(run, self._limit, self.state.best_model_checkpoint)

    def _save_callbacks(self) -> None:
        arguments = copy.copy(self.args)
        arguments.output_dir = str(self._beside)
        self.control = self.callback_handler.call_event("on_save", arguments, self.state, self.control)

    @staticmethod
    def _callbacks_have_saved(
        args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """In the place of the handler's `on_save`: they have, before the checkpoint was published."""
        control.should_save = False
        return control

    def _name_best(self, place: Path) -> None:
        """If this checkpoint is the best, say so by the name it is about to get."""
        staged = str(Path(str(self._beside)) / place.name)
        if self.state.best_model_checkpoint == staged:
            self.state.best_model_checkpoint = str(place)
            self.state.save_to_json(str(Path(staged) / TRAINER_STATE_NAME))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Wait for the checkpoint to have its name: the upload runs in the background."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if not self.args.should_save:  # transformers >= 5.23 comes here on every rank
            return
        super()._save(output_dir, state_dict)
        folder = Path(str(output_dir or self.args.output_dir))
        (folder / TRAINING_ARGS_NAME).unlink()  # a pickle that nothing reads
        write_json(folder / ARGUMENTS, self._arguments())

    def _checkpoint_bytes(self) -> int:
        """Bytes of the parameters, tied ones once, and of the optimizer: the least of a checkpoint."""
        tensors: list[torch.Tensor] = list(self.model.parameters())
        for state in getattr(self.optimizer, "state", {}).values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class _StopCallback(TrainerCallback):
    """Ends training after the step in which a rank was asked to stop, with a checkpoint."""

    def __init__(self, stop: StopRequest) -> None:
        self.stop = stop

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if world_size() > 1:
            number = torch.tensor(self.stop.number, device=args.device)
            torch.distributed.all_reduce(number, op=torch.distributed.ReduceOp.MAX)
            self.stop.number = int(number)
        if self.stop.number:
            control.should_save = control.should_training_stop = True


class _SamplerEpoch(TrainerCallback):
    """Tells the sampler its epoch, also when a run is resumed inside one on several ranks: there accelerate
    wraps it twice, the Trainer looks through one, and the batches would be those of the first epoch.
    """

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        sampler: Any = getattr(kwargs["train_dataloader"], "batch_sampler", None)
        while hasattr(sampler, "batch_sampler"):
            sampler = sampler.batch_sampler
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(int(state.epoch or 0))


def _resume_command(checkpoint: Path) -> str:
    """The command of the run that `lexforge.runs.open_run` recorded, or else the call."""
    record = checkpoint.parent / "env.json"
    if not record.is_file():
        return f"trainer.train(resume_from_checkpoint={str(checkpoint)!r})"
    run = json.loads(record.read_text(encoding="utf-8"))
    return shlex.join([*run["command"], "--resume"])
