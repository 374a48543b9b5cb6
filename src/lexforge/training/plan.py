"""What a run would take, measured in a few of its own steps in a folder that is removed again."""

from __future__ import annotations

import math
import os
import random
import shutil
import tempfile
import time
import weakref
from collections.abc import Collection
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from accelerate import PartialState
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge import corpus
from lexforge.common.device_memory import free_memory, peak_memory
from lexforge.common.numbers import byte_size, duration
from lexforge.common.ranks import from_first_rank
from lexforge.evaluation.retrieval_task import COMPARED_ROWS
from lexforge.losses.base import LOSS_KEYS, losses_of
from lexforge.losses.gradient_cache import can_be_cut
from lexforge.runs import Stages
from lexforge.runs.resumable import ResumableTraining
from lexforge.sparsity.constants import BETWEEN, COUNTED_TEXTS, SAMPLE

if TYPE_CHECKING:
    from datasets import Dataset

Config = TypeVar("Config", bound=Any)
WARM, TIMED = 2, 6  # steps before any is timed, the first of which measures memory and kernels; timed steps
NEVER = 2**31 - 1  # steps


class Plan:
    """Measures a few steps of a run, and tells what the whole run would take.

    Args:
        cfg: The settings of the run, resolved.
        process: This process among those of the run, all of which plan.
        stages: The stages of the run, whose seconds before training count.

    Raises:
        ValueError: If the run is to be resumed, or if its processes are on several machines, which share no
            temporary folder.
    """

    def __init__(self, cfg: Any, process: PartialState, stages: Stages) -> None:
        if cfg.resume:
            raise ValueError("--plan tells what a new run would take; leave --resume out")
        here = int(os.environ.get("LOCAL_WORLD_SIZE", process.num_processes))
        if process.num_processes > here:
            raise ValueError(
                f"--plan measures the processes of one machine; received {process.num_processes}, of which "
                f"{here} are on this one. Start it on one machine"
            )
        self.cfg = cfg
        self.stages = stages
        self.rows = self.drawn = 0
        self._process = process
        self._ranks = process.num_processes
        self._folder = Path(from_first_rank(lambda: tempfile.mkdtemp(prefix="lexforge-plan-")))
        if process.is_main_process:
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def short(self) -> Any:
        """Return the settings of the run with folders of their own, and without checkpoints and measures."""
        folders: dict[str, Any] = {"output_dir": self._folder / "run"}
        if any(field.name == "teacher_cache" for field in fields(self.cfg)):
            folders["teacher_cache"] = self._folder / "teacher"
        return replace(
            self.cfg,
            **folders,
            train=replace(self.cfg.train, save_steps=NEVER, logging_steps=NEVER, report_to=()),
            evaluation=replace(
                self.cfg.evaluation,
                eval_steps=self.cfg.evaluation.eval_steps and NEVER,  # dev is held out as in the run
                initial_evaluation=False,
            ),
            card=replace(self.cfg.card, push_to_hub=None),
        )

    def some(self, rows: list[dict[str, Any]] | Dataset) -> list[dict[str, Any]] | Dataset:
        """Draw as many rows as the measured steps need, twice over, so that a teacher embeds no more.

        Args:
            rows: All training rows.

        Returns:
            Some of them in a random order, or all of a few.
        """
        self.rows = len(rows)
        wanted = 2 * (WARM + TIMED) * self.rows_per_step
        self.drawn = min(wanted, self.rows)
        drawn = random.Random(self.cfg.train.seed).sample(range(self.rows), self.drawn)
        return [rows[place] for place in drawn] if isinstance(rows, list) else rows.select(drawn)

    @property
    def rows_per_step(self) -> int:
        """The rows of an optimizer step, over all processes."""
        train = self.cfg.train
        return int(train.batch_size * train.gradient_accumulation_steps * self._ranks)

    @property
    def steps(self) -> int:
        """The optimizer steps of the whole run."""
        train = self.cfg.train
        if train.steps is not None:
            return int(train.steps)
        batches = self.rows // train.batch_size // self._ranks  # incomplete batches are dropped
        per_epoch = max(1, math.ceil(batches / train.gradient_accumulation_steps))  # as the Trainer counts
        return math.ceil(train.epochs * per_epoch)

    def measure(
        self,
        trainer: ResumableTraining,
        documents: Collection[str],
        *,
        searched: int,
        first_seconds: float = math.inf,
        mines: bool = False,
        compares: bool = False,
    ) -> str:
        """Take the steps on all ranks, encode some documents, and tell what follows for the whole run.

        Args:
            trainer: The trainer of the run over `some` rows; it is of no use afterwards.
            documents: Texts like those that an evaluation encodes, at least one.
            searched: Texts that one evaluation encodes.
            first_seconds: What the evaluation before training may take at most.
            mines: Whether the model mines the negatives of the run, for which it encodes all texts.
            compares: Whether the model is compared with BM25 on training queries.

        Returns:
            Lines for a person; "" on all ranks but the first, which alone encodes the documents.
        """
        device = trainer.args.device
        trainer.args.max_steps = self.steps  # schedules and ramps begin as those of the whole run
        fitting, free = _rows_that_fit(trainer), free_memory(device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        clock = _Clock(min(self.steps, WARM + TIMED), trainer)
        trainer.add_callback(clock)
        with suppress(_Measured):
            trainer.train()
        stages = self.stages.end()
        if not self._process.is_main_process:
            return ""
        per_second, _ = corpus.encoding_speed(trainer.model.eval(), documents)
        peak = peak_memory(device)

        # Before training: what was done here, and what a teacher takes for the other rows.
        teacher = stages.get("prepare the teacher", 0.0) * (self.rows / self.drawn - 1)
        before = sum(stages.values()) - sum(clock.all_seconds) + teacher
        # Texts that are encoded beside training: on dev, after it, to count active terms, and before it.
        evaluation = self.cfg.evaluation
        # The last step is evaluated on dev too.
        between = evaluation.steps_between(self.steps)
        evaluations = 1 + (0 if between is None else -(-self.steps // between))
        wanted = [number for number in getattr(trainer, "wanted_terms", {}).values() if number is not None]
        texts = evaluations * searched + len(wanted) * (SAMPLE + int(COUNTED_TEXTS / BETWEEN))
        texts += mines * (len(documents) + self.rows) + compares * 2 * min(self.rows, COMPARED_ROWS)
        encoding = texts / per_second
        if evaluation.initial_evaluation:
            encoding += min(searched / per_second, first_seconds)
        training = self.steps * median(clock.seconds)

        per_step = self.rows_per_step
        each = "" if self._ranks == 1 else f", in each of {self._ranks} processes"
        most = f"about {min(fitting):,} rows are encoded at once" if fitting else "not measured"
        return "\n".join(
            f"{name:20}  {text}"
            for name, text in {
                "rows": f"{self.rows:,}, of which a step takes {per_step:,}",
                "steps": f"{self.steps:,}, or {self.steps * per_step / self.rows:.1f} passes over the rows",
                "seconds per step": f"{median(clock.seconds):.3g}, the median of {len(clock.seconds)} "
                f"({min(clock.seconds):.3g} to {max(clock.seconds):.3g})",
                "peak memory": f"{byte_size(peak)} on {device.type}{each}; {byte_size(free)} were free",
                "largest batch": f"{most}{each}; a larger batch is cut, and costs one more forward pass",
                "documents per second": f"{per_second:,.1f}, where texts are encoded and not trained on",
                "time": f"{duration(before + training + encoding)}: {duration(before)} before training, "
                f"{duration(training)} of training, {duration(encoding)} to encode texts for evaluations, "
                "mining and counts of terms",
                "disk": self._disk(
                    clock.checkpoint, sum(weight.nbytes for weight in trainer.model.parameters())
                ),
            }.items()
        )

    def _disk(self, checkpoint: int, model: int) -> str:
        """Say what checkpoints and model will take, by the bytes of one of each."""
        train, output = self.cfg.train, self.cfg.output_dir.resolve()
        by_measure = self.cfg.evaluation.best_measure is not None
        between = self.cfg.evaluation.steps_between(self.steps) if by_measure else None
        between = between or train.checkpoint_steps(self.steps)
        saved = -(-self.steps // between)  # and one at the end
        # The best checkpoint stays beside the newest ones.
        kept = saved if train.save_total_limit is None else min(saved, train.save_total_limit + by_measure)
        place = next(path for path in (output, *output.parents) if path.exists())
        return (
            f"about {byte_size((kept + 1) * checkpoint + model)}: {kept} times {byte_size(checkpoint)} for "
            f"checkpoints, and another one while it is written, and {byte_size(model)} for the model; "
            f"{byte_size(shutil.disk_usage(place).free)} are free at {place}"
        )


class _Measured(Exception):
    """Ends a training whose steps have been timed; what follows a whole training is left out."""


class _Clock(TrainerCallback):
    """Times steps from end to end, with the batches that are made for them, and ends training then.

    Args:
        steps: Number of steps that are taken.
        trainer: Takes them. It is asked for the bytes of a checkpoint in the last step, because under FSDP2
            the optimizer does not outlive training.
    """

    def __init__(self, steps: int, trainer: ResumableTraining) -> None:
        self._steps = steps
        self._trainer = trainer
        self._ends: list[float] = []

    @property
    def all_seconds(self) -> list[float]:
        """The seconds of each step."""
        return [end - start for start, end in zip(self._ends, self._ends[1:], strict=False)]

    @property
    def seconds(self) -> list[float]:
        """The seconds of the steps behind the first few, or of the last one where there are no more."""
        return self.all_seconds[WARM:] or self.all_seconds[-1:]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the clock."""
        self._ends = [time.perf_counter()]

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note the time, once the device has done its work."""
        if args.device.type == "cuda":
            torch.cuda.synchronize(args.device)
        self._ends.append(time.perf_counter())
        if state.global_step >= self._steps:
            self.checkpoint = self._trainer.checkpoint_bytes()
            raise _Measured


def _rows_that_fit(trainer: ResumableTraining) -> list[int]:
    """Return a list that takes, for each batch of a training, how many such rows could be encoded at once.

    Args:
        trainer: A trainer with one loss of this package, before training.
    """
    (loss,) = losses_of(trainer.loss)
    fitting: list[int] = []

    def look(_: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        columns = [
            {key: value for key, value in column.items() if key not in LOSS_KEYS} for column in arguments[0]
        ]
        if can_be_cut(columns):
            fitting.append(loss.rows_that_fit.largest_batch(trainer.model, columns))

    loss.register_forward_pre_hook(look)
    return fitting
