"""Lines of text files and JSON-lines files, plain or gzipped, with the line in every complaint."""

from __future__ import annotations

import gzip
import json
import math
import reprlib
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lexforge.data.retrieval_data import DataError

# A longer line is refused unread: a file of one line, or a small gzip file of one, must not fill the memory.
# It is several times the text of the longest books.
MAX_LINE_BYTES = 16 * 2**20

_excerpt = reprlib.Repr()
_excerpt.maxstring = _excerpt.maxother = 200


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file, cut at line feeds only.

    Args:
        path: UTF-8, gzipped if its name ends in `.gz`.

    Yields:
        The line's number, from 1, and its text without the line end.

    Raises:
        DataError: A line that is longer than `MAX_LINE_BYTES` or not UTF-8, or broken gzip data.
    """
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        number = 0
        try:
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise DataError(f"{path}:{number}: the line is longer than {MAX_LINE_BYTES:,} bytes")
                yield number, line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: not UTF-8: {error}") from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path}: broken gzip data after line {number}: {error}") from error


def json_objects(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON-lines file.

    Args:
        path: One JSON object a line, UTF-8, gzipped if its name ends in `.gz`.
        fields: Fields that each object must have.

    Yields:
        The line's number, from 1, and the object.

    Raises:
        DataError: A line that is not such an object, with file and line.
    """
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # ValueError: also a number of more than 4300 digits
            raise DataError(f"{where}: not a JSON object: {error}") from error
        if not isinstance(record, dict):
            raise DataError(f"{where}: expected a JSON object, got {type(record).__name__}")
        for field in fields:
            if field not in record:
                raise DataError(f"{where}: the field {field!r} is missing; found {excerpt(sorted(record))}")
        yield number, record


def excerpt(value: object) -> str:
    """A value for an error message: its repr, cut where it is long or deep."""
    return _excerpt.repr(value)


def require_texts(where: str, **values: object) -> None:
    """Check that fields of a record are strings that UTF-8 can hold.

    Args:
        where: File and line.
        **values: Field -> value.

    Raises:
        DataError: With the field and what it holds.
    """
    for field, value in values.items():
        if not isinstance(value, str):
            raise DataError(f"{where}: {field!r} must be a string, got {excerpt(value)}")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise DataError(f"{where}: {field!r} holds half of a surrogate pair: {error}") from error


def is_finite(value: object) -> bool:
    """Whether a value read from JSON is a number, neither true nor false, that a finite float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond 1e308
        return False
