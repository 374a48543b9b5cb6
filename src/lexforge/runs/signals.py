"""SIGTERM and SIGINT as a request: finish the step, save, and leave."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
PASSED_ON = 1.0  # seconds in which a launcher has passed on the terminal's Ctrl-C


class TrainingInterrupted(SystemExit):
    """Training ended early, after a checkpoint, because a signal asked for it.

    As a `SystemExit` it ends the process with code 128 + signal (143 for SIGTERM, 130 for SIGINT), as the
    shell would report the signal itself.

    Args:
        number: The signal.
        checkpoint: What was saved.
        step: Optimizer steps done.
    """

    def __init__(self, number: int, checkpoint: str, step: int) -> None:
        super().__init__(128 + number)
        self.number = number
        self.checkpoint = checkpoint
        self.step = step


class StopRequest:
    """While entered, SIGTERM and SIGINT are only noted in `number`; a second Ctrl-C acts as it did before.

    A second SIGTERM, or a SIGINT within a second of the first signal, changes nothing: launchers pass on what
    the process has got already. Signals can be caught in a process's main thread only; elsewhere nothing is
    changed.
    """

    def __init__(self) -> None:
        self.number = 0
        self._noted = 0.0  # when
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        """Start to listen."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put back what handled the signals before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.number:
            self.number, self._noted = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() > self._noted + PASSED_ON:
            signal.signal(number, self._before[number])
            signal.raise_signal(number)
