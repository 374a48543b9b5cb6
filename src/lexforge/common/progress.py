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
        self._logged = time.monotonic()

    def update(self, count: int) -> None:
        """Add to what is done; a log line at most every `LOG_SECONDS`, and one at the end."""
        self.done += count
        self._bar.update(count)
        now = time.monotonic()
        ended = self.total is not None and self.done >= self.total
        if self._logs and (ended or now - self._logged >= LOG_SECONDS):
            whole = "" if self.total is None else f" of {self.total}"
            logger.info("%s: %d%s %s", self.what, self.done, whole, self.unit)
            self._logged = now

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
