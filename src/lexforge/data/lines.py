"""Lines of text files and JSON-lines files, plain or packed, and checks of what stands in them.

Every error message names the line.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import reprlib
import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from numbers import Integral
from pathlib import Path
from typing import Any, BinaryIO

from lexforge.common.command_line import printable
from lexforge.common.types import DataError

# A longer line is refused before it is read whole, because a small gzip file of one line could fill the
# memory. The limit is several times the text of the longest books.
MAX_LINE_BYTES = 16 * 2**20
BYTE_ORDER_MARK = "\ufeff"  # Windows tools write it at the start of a file; it is no part of the first line
# trec_eval, which ir-measures calls, keeps a counter for every grade up to the largest, for each query. A
# grade of 10,000 costs nothing measurable; a million makes it 20 times slower; 100 million takes 0.8 GB; and
# beyond 32 bits the values are wrong (nDCG 0) or the process dies.
MAX_GRADE = 9999
_INTEGER = re.compile(r"([+-]?[0-9]{1,9})(\.0+)?")  # pandas writes 1.0 where a cell of the column is empty
# A character that is seen: neither white space nor one of Unicode's without width, such as the zero width
# space that web pages leave in cells, marks of direction, and fillers.
_SEEN = re.compile(
    r"[^\s\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\u3164\ufe00-\ufe0f\ufeff\uffa0]"
)

_excerpt = reprlib.Repr()
_excerpt.maxstring = _excerpt.maxother = 200


class NotDecodable(DataError):
    """A text file is not in the encoding in which it is read."""


def unpacked(path: Path) -> str:
    """Return the name of a file without .gz or .zst, such as "corpus.jsonl"."""
    return path.stem if path.suffix in (".gz", ".zst") else path.name


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading; the bytes are those before compression if its name ends in .gz or .zst."""
    if path.suffix == ".gz":
        return gzip.open(path)  # type: ignore[return-value]  # a GzipFile reads as any binary stream
    if path.suffix == ".zst":
        import pyarrow

        stream = pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd")
        return io.BufferedReader(stream, 2**16)
    return path.open("rb")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file, cut at line feeds only.

    Args:
        path: A file in UTF-8, with a byte order mark or none, compressed if its name ends in `.gz` or `.zst`.

    Yields:
        The line's number, from 1, and its text without the line end.

    Raises:
        DataError: If a line is longer than `MAX_LINE_BYTES` or not UTF-8 (`NotDecodable`), or if the
            compressed data are broken.
    """
    with open_bytes(path) as stream:
        for number, line in bounded_lines(stream, path):
            if number == 1:
                line = line.removeprefix(BYTE_ORDER_MARK.encode())
                if b"\0" in line:
                    raise NotDecodable(f"{path}:1: not UTF-8: it holds zero bytes, as UTF-16 and UTF-32 do")
            try:
                yield number, line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise NotDecodable(f"{path}:{number}: not UTF-8: {error}") from error


def bounded_lines(stream: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of an open file in any encoding, as they are.

    Args:
        stream: The file.
        path: Its name, for error messages.

    Yields:
        The line's number, from 1, and its bytes with the line end.

    Raises:
        DataError: If a line is longer than `MAX_LINE_BYTES`, or if the compressed data are broken.
    """
    number = 0
    with whole_data(path, lambda: f" after line {number}"):
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                raise DataError(f"{path}:{number}: the line is longer than {MAX_LINE_BYTES:,} bytes")
            yield number, line


@contextmanager
def whole_data(path: Path, place: Callable[[], str] = str) -> Iterator[None]:
    """A block that reads a file, which may be compressed.

    Args:
        path: The file.
        place: Returns where the reader is, for the message.

    Raises:
        DataError: If the compressed data are broken or end too early.
    """
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: broken gzip data{place()}: {error}") from error
    except OSError as error:
        if path.suffix != ".zst":
            raise
        raise DataError(f"{path}: broken zstd data{place()}: {error}") from error


def json_objects(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON-lines file.

    Args:
        path: A file with one JSON object per line in UTF-8, plain or compressed (.gz, .zst).
        fields: The fields that each object must have.

    Yields:
        The line's number, from 1, and the object.

    Raises:
        DataError: If a line is not such an object; the message names file and line.
    """
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # ValueError: also a number of more than 4300 digits
            raise DataError(f"{where}: not a JSON object: {error}") from error
        if not isinstance(record, dict):
            raise DataError(f"{where}: expected a JSON object; received {type(record).__name__}")
        for field in fields:
            if field not in record:
                fields_found = excerpt(sorted(record))
                raise DataError(f"{where}: the field {field!r} is missing; received {fields_found}")
        yield number, record


def stripped(text: str) -> str:
    """Return a text without white space at its ends; "" where nothing of it is seen, so that it is blank."""
    text = text.strip()
    return text if text.isascii() or _SEEN.search(text) else ""


def excerpt(value: object) -> str:
    """Return a value's repr for an error message, cut where it is long or deep."""
    return _excerpt.repr(value)


def counted(items: Sequence[str]) -> str:
    """Return the number of items and up to three of them, for a note or an error message."""
    shown = ", ".join(printable(item) for item in items[:3])
    return f"{len(items):,}, {'namely' if len(items) <= 3 else 'such as'} {shown}"


def require_texts(where: object, **values: object) -> None:
    """Check that fields of a record are strings that UTF-8 can hold.

    Args:
        where: Where the record stands, for error messages: file and line, or what names them as text; None
            leaves the place to the caller.
        **values: Field -> value.

    Raises:
        DataError: If one of them is not; the message names the field and its value.
    """
    for field, value in values.items():
        if not isinstance(value, str):
            raise _refused(where, f"{field!r} must be a string; received {excerpt(value)}")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise _refused(where, f"{field!r} holds half of a surrogate pair: {error}") from error


def check_new_id(where: object, key: str, known: Container[str]) -> None:
    """Check that an id is not empty and not known yet.

    Args:
        where: Where the record stands, for error messages.
        key: The id.
        known: The ids before it.

    Raises:
        DataError: If it is.
    """
    if not key:
        raise DataError(f"{where}: the id is empty")
    if key in known:
        raise DataError(f"{where}: the id {key!r} occurs a second time")


def as_number(cell: object) -> float | None:
    """Return the finite number that a cell holds or spells; None for anything else, such as true."""
    if isinstance(cell, bool) or not isinstance(cell, (int, float, str, Decimal)):
        return None
    try:
        number = float(cell)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def check_grade(where: object, grade: object) -> int:
    """Return a grade as an integer.

    Args:
        where: Where the grade stands, for error messages: query and document, or what names them as text;
            None leaves the place to the caller.
        grade: An integer, or a float without a fraction.

    Returns:
        The grade; a document with a grade above 0 is relevant.

    Raises:
        DataError: If the grade is something else, or if its absolute value exceeds `MAX_GRADE`.
    """
    if isinstance(grade, Integral) or (isinstance(grade, float) and grade.is_integer()):
        number = int(grade)
        if abs(number) <= MAX_GRADE:
            return number
    raise _refused(
        where,
        f"the score must be an integer grade from {-MAX_GRADE} to {MAX_GRADE}; received {excerpt(grade)}",
    )


def parse_grade(text: str) -> int:
    """Return the grade that a column of a file holds.

    Args:
        text: Decimal digits, with or without a sign; zeros may follow behind a point.

    Returns:
        The grade.

    Raises:
        DataError: If `check_grade` refuses it.
    """
    found = _INTEGER.fullmatch(text)
    return check_grade(None, text if found is None else int(found[1]))


def _refused(where: object, message: str) -> DataError:
    return DataError(message if where is None else f"{where}: {message}")
