"""Progress of long work: a bar on a terminal, lines in the log elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType

from tqdm import tqdm

logger = logging.getLogger(__name__)

LOG_SECONDS = 10.0


class Progress:
    """Counts what is done; use it in a `with` statement.

    Args:
        total: How much there is to do.
        what: The work, as a heading.
        unit: What is counted.
        show: False counts in silence.
    """

    def __init__(self, total: int, what: str, unit: str = "documents", *, show: bool = True) -> None:
        self.total, self.what, self.unit = total, what, unit
        self.done = 0
        terminal = sys.stderr.isatty()
        self._bar = tqdm(total=total, desc=what, unit=f" {unit}", disable=not (show and terminal))
        self._logs = show and not terminal
        self._logged = time.monotonic()

    def update(self, count: int) -> None:
        """Add to what is done; a log line at most every `LOG_SECONDS`, and one at the end."""
        self.done += count
        self._bar.update(count)
        now = time.monotonic()
        if self._logs and (self.done >= self.total or now - self._logged >= LOG_SECONDS):
            logger.info("%s: %d of %d %s", self.what, self.done, self.total, self.unit)
            self._logged = now

    def __enter__(self) -> Progress:
        """The counter itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the bar, whether or not the work went well."""
        self._bar.close()
