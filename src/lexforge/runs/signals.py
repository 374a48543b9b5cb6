"""SIGTERM and SIGINT as a request to finish the step, save a checkpoint and end the process."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.common.ranks import over_ranks

SIGNALS = (signal.SIGTERM, signal.SIGINT)
PASSED_ON = 1.0  # seconds within which a launcher passes on the Ctrl-C that the terminal sent to all


class TrainingInterrupted(SystemExit):
    """Training ended early, after a checkpoint, because a signal asked for it.

    It is a `SystemExit`: it ends the process with the code 128 + signal (143 for SIGTERM, 130 for SIGINT),
    which is what the shell reports for a process that the signal itself ended.

    Args:
        number: The number of the signal.
        checkpoint: The path of the checkpoint that was saved.
        step: The number of optimizer steps done.
    """

    def __init__(self, number: int, checkpoint: str, step: int) -> None:
        super().__init__(128 + number)
        self.number = number
        self.checkpoint = checkpoint
        self.step = step


class StopRequest(TrainerCallback):
    """A context in which SIGTERM and SIGINT are only noted, and the callback that ends training for them.

    The first signal stands in `number`. After the step in which any rank has received one, training ends with
    a checkpoint.

    A second Ctrl-C has the effect that it had before the context was entered. A second SIGTERM, or a SIGINT
    within a second of the first signal, changes nothing, because launchers pass on signals that the process
    has already received itself. Signals can be caught in the main thread of a process only; in any other
    thread the context changes nothing.
    """

    def __init__(self) -> None:
        self.number = 0  # the first signal received, or 0
        self._noted = 0.0  # the time at which it was received, in seconds of `time.monotonic`
        self._before: dict[int, Any] = {}  # the handlers to put back

    def __enter__(self) -> StopRequest:
        """Start to listen."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put back the handlers that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.number:
            self.number, self._noted = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() > self._noted + PASSED_ON:
            signal.signal(number, self._before[number])
            signal.raise_signal(number)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Share the request among the ranks, since a signal may have reached one of them only."""
        self.number = over_ranks(self.number, args.device, "MAX")
        if self.number:
            control.should_save = control.should_training_stop = True
