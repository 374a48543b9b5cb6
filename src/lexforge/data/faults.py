"""What is wrong in the rows of a source, all of it at once: one error, or one summary of what is left out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

from lexforge.common.command_line import printable
from lexforge.common.types import DataError
from lexforge.settings import BadRows

logger = logging.getLogger(__name__)

BLANK = "blank texts"
"""Faults that several readers find."""
WRONG = "wrong values"
_SHOWN = 3  # examples of each fault
_DETAIL = 40  # characters of a cell that are shown behind its place
HINT = '--bad-rows skip leaves such rows out (bad_rows="skip" in Python)'


class BadRow(DataError):
    """A row that cannot be used, with the heading under which the summary counts it.

    Args:
        fault: What is wrong, as a heading of the summary.
        message: What is wrong with this row; it names no place.
        detail: What the summary says behind the place, as for `Faults.bad`.
    """

    def __init__(self, fault: str, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.fault = fault
        self.detail = detail


@dataclass
class _Fault:
    """How many rows have one fault, and where the first of them stand."""

    number: int = 0
    examples: list[str] = field(default_factory=list)


class Faults:
    """Counts what is wrong in the rows of a source, by fault and with up to three examples of each.

    Args:
        source: The name of the source, for messages.
        bad_rows: `fail` refuses a source that holds a bad row, once all of it has been read; `skip` leaves
            bad rows out and tells it.

    Attributes:
        rows: Number of rows that were read, with the bad ones.
    """

    def __init__(self, source: str, bad_rows: BadRows = "fail") -> None:
        self.source = source
        self._skips = bad_rows == "skip"
        self.rows = 0
        self._notes: list[str] = []
        self._first = ""  # the message of the first bad row
        self._bad: dict[str, _Fault] = {}
        self._told: dict[str, _Fault] = {}

    def note(self, line: str) -> None:
        """Add a line that is told whatever the rows hold, such as an encoding that was guessed."""
        self._notes.append(line)

    def bad(self, fault: str, where: object, message: str, detail: str = "") -> None:
        """Count a row that cannot be used.

        Args:
            fault: What is wrong, as a heading of the summary.
            where: Where the row stands; its text is made for examples only.
            message: What is wrong with this row; it follows the place where this is the first bad row.
            detail: What the summary says behind the place; by default what the message says was received,
                unless that is blank.
        """
        if fault != BLANK:
            detail = detail or message.partition("; received ")[2]
        if not self._first:
            self._first = f"{where}: {message}"
        self._count(self._bad, fault, where, detail)

    @contextmanager
    def reading(self, where: object) -> Iterator[None]:
        """A block that reads one row: what it refuses is counted as a bad row, and the block ends.

        Args:
            where: Where the row stands. The messages of the block leave it out, because it may take long.
        """
        try:
            yield
        except BadRow as error:
            self.bad(error.fault, where, str(error), error.detail)
        except DataError as error:
            self.bad(WRONG, where, str(error))

    def told(self, fault: str, where: object, detail: str = "") -> None:
        """Count a row that is told of and not refused; the arguments are those of `bad`."""
        self._count(self._told, fault, where, detail)

    def finish(self) -> list[str]:
        """Return the summary once all has been read, one line each; nothing if there is nothing to tell.

        Raises:
            DataError: If a row is bad and bad rows are refused. The message begins with the first of them.
        """
        bad = sum(fault.number for fault in self._bad.values())
        lines = [*_lines(self._bad), *_lines(self._told)]
        if bad and not self._skips:
            head = f"In all {bad:,} of {self.rows:,} rows of {self.source} are bad:"
            error = DataError("\n".join([self._first, *([head, *lines] if bad > 1 else [])]))
            for note in [*self._notes, HINT]:
                error.add_note(note)
            raise error
        if bad:
            lines.insert(0, f"{self.source}: {bad:,} of {self.rows:,} rows are bad and left out:")
        elif lines:
            lines.insert(0, f"{self.source}: {self.rows:,} rows, among them")
        return [printable(line) for line in [*self._notes, *lines]]

    def log(self) -> None:
        """Log the summary; see `finish`."""
        for line in self.finish():
            logger.warning("%s", line)

    def refuse_nothing_left(self) -> NoReturn:
        """Refuse a source of which no row is left, with the summary."""
        summary = self.finish()
        raise DataError("\n".join([f"{self.source} holds no row that can be used", *summary]))

    def _count(self, faults: dict[str, _Fault], fault: str, where: object, detail: str) -> None:
        found = faults.setdefault(fault, _Fault())
        found.number += 1
        if found.number <= _SHOWN:
            shown = detail if len(detail) <= _DETAIL else f"{detail[:_DETAIL]}..."
            found.examples.append(self._place(where) + (f" ({shown})" if shown else ""))

    def _place(self, where: object) -> str:
        """Return a place without the name of the source: `line 4`, or `train.csv:4` in a folder."""
        text = str(where)
        rest = text.removeprefix(f"{self.source}:")
        if rest != text and rest.isdigit():
            return f"line {rest}"
        return text.removeprefix(self.source).lstrip("/, ")


def _lines(faults: dict[str, _Fault]) -> Sequence[str]:
    return [
        f"  {fault}: {found.number:,}, {'namely' if found.number <= _SHOWN else 'such as'} "
        + ", ".join(found.examples)
        for fault, found in faults.items()
    ]
