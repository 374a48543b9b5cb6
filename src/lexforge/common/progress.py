"""Progress of long work: a bar on a terminal or in a notebook, lines in the log elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from types import TracebackType

from tqdm import std
from tqdm.auto import tqdm

logger = logging.getLogger(__name__)

LOG_SECONDS = 10.0
LEAST_SECONDS_LEFT = 10.0  # a line says how long the rest takes if it takes longer


def bars_are_seen() -> bool:
    """Return whether somebody sees a bar: on a terminal, or in the kernel of a notebook."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    return sys.stderr.isatty() or (shell is not None and "IPKernelApp" in shell.config)


@contextmanager
def bars_on_a_terminal_only() -> Iterator[None]:
    """A block in which the bars of other packages draw nothing, unless somebody sees them.

    Those packages make bars without a switch of their own. A bar that is told whether to draw obeys still, as
    with `TQDM_DISABLE`, which tqdm reads too early for this: while it is imported.
    """
    made = std.tqdm.__init__  # every other kind of bar inherits it
    if not bars_are_seen():
        std.tqdm.__init__ = partialmethod(made, disable=True)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        std.tqdm.__init__ = made  # type: ignore[method-assign]


class Progress:
    """Counts what is done; use it in a `with` statement.

    Args:
        total: How much there is to do; None if only the work itself will tell.
        what: The work, as a heading.
        unit: What is counted.
        show: False counts in silence.
    """

    def __init__(self, total: int | None, what: str, unit: str = "documents", *, show: bool = True) -> None:
        self.total, self.what, self.unit = total, what, unit
        self.done = 0
        seen = bars_are_seen()
        self._bar = tqdm(total=total, desc=what, unit=f" {unit}", disable=not (show and seen))
        self._logs = show and not seen
        self._logged, self._told = time.monotonic(), 0  # when the last line was written, and what it said

    def update(self, count: int) -> None:
        """Add to what is done; a log line at most every `LOG_SECONDS`, and one at the end.

        A line says how long the rest takes at the speed since the line before, where the total is known and
        that is longer than `LEAST_SECONDS_LEFT`.
        """
        self.done += count
        self._bar.update(count)
        now = time.monotonic()
        ended = self.total is not None and self.done >= self.total
        if self._logs and (ended or now - self._logged >= LOG_SECONDS):
            whole = "" if self.total is None else f" of {self.total}"
            logger.info("%s: %d%s %s%s", self.what, self.done, whole, self.unit, self._left(now))
            self._logged, self._told = now, self.done

    def _left(self, now: float) -> str:
        """Return the end of a line, which says how long the rest takes; "" where that is short or unknown."""
        since = self.done - self._told
        if self.total is None or not since:
            return ""
        seconds = (self.total - self.done) * (now - self._logged) / since
        return f", about {_rounded(seconds)} left" if seconds > LEAST_SECONDS_LEFT else ""

    def __enter__(self) -> Progress:
        """The counter itself."""
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the bar, whether or not the work went well, and log the sum that nobody knew before."""
        self._bar.close()
        if self._logs and self.total is None and self.done and error is None:
            logger.info("%s: %d %s in all", self.what, self.done, self.unit)


def _rounded(seconds: float) -> str:
    """Format a guess at a time: tens of seconds, minutes, or hours and minutes."""
    if seconds < 90:
        return f"{round(seconds, -1):.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
