"""What a run is doing now, and how long each of its stages took."""

from __future__ import annotations

import time

from accelerate import PartialState


class Stages:
    """Names the stages of a run as they begin, and measures them.

    Args:
        process: This process among those of the run; the main process prints.
    """

    def __init__(self, process: PartialState) -> None:
        self.seconds: dict[str, float] = {}
        self._process = process
        self._started = self._began = time.perf_counter()
        self._current: str | None = None

    def begin(self, name: str) -> None:
        """End the stage before, and print the name of the next one with the time since the start.

        Args:
            name: What the run does now, such as "train"; a name that comes again adds to its time.
        """
        now = self._close()
        self._current = name
        self._process.print(f"[{now - self._started:7.1f} s] {name}", flush=True)

    def end(self) -> dict[str, float]:
        """End the last stage.

        Returns:
            Stage -> seconds, in the order in which the stages began.
        """
        self._close()
        return self.seconds

    def table(self) -> str:
        """Format the seconds of the stages as one line, for the end of a run."""
        return "seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in self.seconds.items())

    def _close(self) -> float:
        """Add the time of the current stage, and return what the clock says."""
        now = time.perf_counter()
        if self._current is not None:
            taken = self.seconds.get(self._current, 0.0) + now - self._began
            self.seconds[self._current] = round(taken, 2)
        self._began, self._current = now, None
        return now
