"""The log of a run: a file that can be read while it goes on and after a crash, and lines on the screen."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ProgressCallback

from lexforge.storage.files import write_file

LOG_FILE = "log.jsonl"
logger = logging.getLogger(__name__)


class LogFile(TrainerCallback):
    """Appends each line of the log to `log.jsonl` in the output folder, as soon as it is written.

    A line is a JSON object with `step`, `epoch`, `time` (seconds since 1970) and all values that the Trainer
    logs. A line with `begin` stands where training begins or is resumed, and says `max_steps`. A resumed run
    first removes the lines of later steps than its own, which an interrupted run left, so each step stands
    there once. One process of a run writes. If a line cannot be written, as on a full disk, a warning says
    so, and training goes on without the file.
    """

    def __init__(self) -> None:
        self._failed = False  # a line that was cut must stay the last one

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin a new file, or cut the file of the run that is resumed to the steps before."""
        if not state.is_world_process_zero:
            return
        folder = Path(str(args.output_dir))
        lines = read_log(folder) if state.global_step else []
        lines = [line for line in lines if line["step"] <= state.global_step]
        self._failed = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_file(folder / LOG_FILE, "".join(_to_line(line) for line in lines).encode())
        except OSError as error:
            self._give_up(folder, error)
        self._append(args, state, {"begin": True, "max_steps": state.max_steps})

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append a line of the log."""
        if logs and state.is_world_process_zero:
            self._append(args, state, logs)

    def _append(self, args: TrainingArguments, state: TrainerState, values: dict[str, Any]) -> None:
        if self._failed:
            return
        when = {"step": state.global_step, "epoch": state.epoch, "time": round(time.time(), 3)}
        file = Path(str(args.output_dir)) / LOG_FILE
        # Opened for each line, so that nothing stays in a buffer if the process is killed.
        try:
            with file.open("a", encoding="utf-8") as log:
                log.write(_to_line(values | when))
        except OSError as error:
            self._give_up(file.parent, error)

    def _give_up(self, folder: Path, error: OSError) -> None:
        self._failed = True
        logger.warning("%s cannot be written, and training goes on without it: %s", folder / LOG_FILE, error)


class LogLines(PrinterCallback):
    """Print each entry of the log as a short line that begins with its step, where no progress bar shows it.

    A line of training has the loss, those of its parts that are not 0, and the active terms. `log.jsonl` has
    all values.
    """

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print one entry of the log; ranks other than the first print nothing."""
        if state.is_world_process_zero and logs:
            print(short_line(logs, state), flush=True)


class LogLinesAboveBar(ProgressCallback):
    """The bar of the Trainer, with the lines of `LogLines` above it."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write one entry of the log above the bar."""
        if state.is_world_process_zero and logs and self.training_bar is not None:
            self.training_bar.write(short_line(logs, state))


def short_line(logs: Mapping[str, Any], state: TrainerState) -> str:
    """Write an entry of the log for the screen.

    Args:
        logs: Its values by name.
        state: Where training is.

    Returns:
        One line, with four digits per number. An entry of training gives the loss, those of its parts that
        are not 0 and the active terms, and another entry all values.
    """
    if "loss" in logs:
        parts = {name: value for name, value in logs.items() if name.startswith("loss/") and value}
        terms = {name: value for name, value in logs.items() if name.startswith("terms/")}
        logs = {"loss": logs["loss"]} | parts | terms
    values = (
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in logs.items()
        # Transformers names a speed also where an evaluation has no loss; it is 0 then.
        if name != "total_flos" and not (name.endswith("_per_second") and not value)
    )
    return f"step {state.global_step} of {state.max_steps}: {', '.join(values)}"


def read_log(folder: str | Path) -> list[dict[str, Any]]:
    """Read the log of a run, also of one that goes on or was killed.

    Args:
        folder: The run directory.

    Returns:
        The lines in the order in which they were written; an empty list if there is no log. A last line that
        a killed process left unfinished is left out.

    Raises:
        ValueError: If another line is no line of a log.
    """
    file = Path(folder) / LOG_FILE
    if not file.is_file():
        return []
    *whole, _ = file.read_bytes().split(b"\n")  # what follows the last line end is unfinished
    lines = []
    for number, text in enumerate(whole, start=1):
        try:
            line = json.loads(text)
            line["step"] = int(line["step"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file}:{number} is no line of a log: {text[:80]!r}") from error
        lines.append(line)
    return lines


def _to_line(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, default=_number) + "\n"


def _number(value: Any) -> Any:
    """A number of numpy or of torch as a number of Python; other values as text."""
    return value.item() if hasattr(value, "item") else str(value)
