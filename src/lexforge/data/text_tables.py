"""Text files of rows: how they are decoded and cut into cells, and the line at which each row begins.

A line that cannot be read is counted, and the lines behind it are read.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lexforge.common.types import DataError
from lexforge.data.encodings import SAMPLE_BYTES, fitting_encoding
from lexforge.data.faults import BadRow, Faults
from lexforge.data.lines import (
    BYTE_ORDER_MARK,
    NotDecodable,
    bounded_lines,
    excerpt,
    open_bytes,
    stripped,
    unpacked,
    whole_data,
)
from lexforge.settings import TableOptions

# File ending -> what the file holds. The texts may also end in .gz or .zst.
READERS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
}
SPLIT = "split"
UTF_8 = "utf-8"
# MS MARCO publishes triples of texts without a header.
_HEADERLESS = ("anchor", "positive", "negative")
DELIMITERS = ";\t|"
"""The usual delimiters beside the comma."""
_END = "\ufdd0"  # no character of any text; a last line of it shows whether the quote before it was closed
# A carriage return alone ends no line, as in the other files here; `csv` would end a row at it.
_LONE_RETURN = re.compile(r"\r(?!\n)")
_RETURN = "\ufdd1"  # stands for it; no character of any text
# What "surrogateescape" makes of a byte; and a zero byte, which UTF-16 has in each letter of English.
_ESCAPED = re.compile("[\udc80-\udcff\0]")
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class TextForm(NamedTuple):
    """How a text file is decoded and cut into cells.

    Args:
        encoding: The encoding, as Python names it.
        fitting: The encoding that fits the lines which are not in it; "" if there are none, or none fits.
        delimiter: What stands between cells; "" for JSON lines and plain text.
        quoted: Whether cells may stand in quotation marks, as they do not in a .tsv file.
        header: The columns; none for JSON lines.
        headerless: Whether no line of a table names its columns.
    """

    encoding: str = UTF_8
    fitting: str = ""
    delimiter: str = ""
    quoted: bool = True
    header: tuple[str, ...] = ()
    headerless: bool = False


@lru_cache(maxsize=1024)  # the names of JSON lines are asked for again in each line
def usual_name(name: str) -> str:
    """Return the name of a column as the usual names are written: `Doc ID` as `doc_id`."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def usual_columns(usual: Sequence[str], names: Collection[str]) -> list[str]:
    """Return the columns that have a usual name.

    Args:
        usual: The names by which a column is recognised, in small letters.
        names: The columns of a table.

    Returns:
        Those that are written as the usual names are, in the order of these; if there are none, those that
        differ in capital letters, white space and hyphens only, in the order of the table.
    """
    exact = [name for name in usual if name in names]
    return exact or [name for name in names if usual_name(name) in usual]


def usual_column(usual: str, names: Collection[str]) -> str | None:
    """Return the first column that has one usual name, as `usual_columns` finds it; None where none has."""
    return next(iter(usual_columns((usual,), names)), None)


def ending(path: Path) -> str:
    """Return the file ending without .gz or .zst, such as ".jsonl"."""
    return Path(unpacked(path)).suffix.lower()


def text_form(path: Path, headers: Sequence[str], options: TableOptions, form: TextForm) -> TextForm:
    """Find out how a file is cut into cells, by its first line.

    Args:
        path: A .csv, .tsv or JSON file.
        headers: Column names that count as a header in a .tsv file, or alone in a .csv file. A .tsv file of
            two or three columns whose first line holds none of them, however written, has no header: it holds
            queries, positives and negatives.
        options: The delimiter and the encoding, where the user names them.
        form: How it is decoded.

    Returns:
        The whole form.

    Raises:
        NotDecodable: If the first line is not in the encoding.
        DataError: If it is missing or blank, or if nothing tells the delimiter.
    """
    if READERS[ending(path)] == "json":
        return form
    first = next((line.rstrip("\r\n") for line in _lines(path, form.encoding)), None)
    where = f"{path}:1"
    if first is None:
        raise DataError(f"{path} holds no row: it is empty")
    if not first.strip():
        raise DataError(f"{where}: expected names of columns; the line is blank")
    try:
        _check_decoded(first, TextForm(form.encoding))
    except BadRow as error:
        such = form.fitting or "cp1252 or utf-16-le"
        hint = "" if options.encoding else f"; name the encoding by --encoding, such as {such}"
        raise NotDecodable(f"{where}: {error}{hint}") from error
    tabs = ending(path) == ".tsv" and options.delimiter is None
    delimiter = options.separator or ("\t" if tabs else _delimiter(where, first, headers))
    form = form._replace(delimiter=delimiter, quoted=not tabs)
    header = tuple(_cells(where, first, form))
    known = {*header, *map(usual_name, header)} & {*headers, SPLIT}
    if tabs and 2 <= len(header) <= 3 and not known:
        return form._replace(header=_HEADERLESS[: len(header)], headerless=True)
    if repeated := [name for name, number in Counter(header).items() if name and number > 1]:
        raise DataError(f"{where}: the name of a column stands there twice: {repeated[0]!r}")
    # pandas writes its index under no name, and a delimiter at the end of the lines makes such a column too.
    named = tuple(name or f"unnamed_{place}" for place, name in enumerate(header))
    return form._replace(header=named)


def _cells(where: str, line: str, form: TextForm) -> list[str]:
    """Return the cells of the line that names the columns."""
    try:
        return next(_csv_records([line], form))[1]
    except csv.Error as error:
        raise DataError(f"{where}: the line cannot be cut into cells: {error}") from error


def _delimiter(where: str, first: str, headers: Sequence[str]) -> str:
    """Return what stands between the names of the columns: the comma wherever there is one.

    Nothing does where the line is the name of one column, and the comma is as good as another.
    """
    names = _cells(where, first, TextForm(delimiter=","))
    if len(names) > 1 or {names[0], usual_name(names[0])} & {*headers}:
        return ","
    try:
        return csv.Sniffer().sniff(first, DELIMITERS).delimiter
    except csv.Error as error:
        raise DataError(
            f"{where}: expected names of columns with a delimiter between them, and found none; received "
            f"{excerpt(first)}. Name it by --delimiter (delimiter= in Python)"
        ) from error


def _lines(path: Path, encoding: str) -> Iterator[str]:
    """Yield the lines of a text file; a byte that cannot be decoded becomes half of a surrogate pair."""
    codec = "utf-8-sig" if encoding == UTF_8 else encoding
    try:
        with open_bytes(path) as stream, whole_data(path):
            lines = io.TextIOWrapper(stream, codec, errors="surrogateescape", newline="\n")
            # Where the encoding is utf-16-le, Python leaves the mark.
            yield from (line.removeprefix(BYTE_ORDER_MARK) for line in islice(lines, 1))
            yield from lines
    except UnicodeDecodeError as error:  # of UTF-16, in which no byte stands for itself
        raise DataError(f"{path}: not {encoding}: {error}") from error


def find_encoding(path: Path, options: TableOptions) -> TextForm:
    """Return how a file is decoded; where the user does not name the encoding, read it whole.

    Args:
        path: A text file.
        options: The encoding, where the user names one.

    Returns:
        The form of plain text. A file is UTF-8 if at least as many of its lines beyond ASCII are as are not,
        or if no more than one is not: one line is too few to guess by.

    Raises:
        DataError: If a line is longer than `lexforge.data.lines.MAX_LINE_BYTES`, or the compressed data are
            broken.
    """
    if options.codec:
        return TextForm(options.codec)
    right = wrong = 0
    sample = bytearray()
    with open_bytes(path) as stream:
        for number, line in bounded_lines(stream, path):
            if number == 1 and line.startswith(_MARKS):
                return TextForm("utf-16")
            try:
                line.decode(UTF_8)
                right += not line.isascii()
            except UnicodeDecodeError:
                wrong += 1
                if len(sample) < SAMPLE_BYTES:
                    sample += line
    fitting = fitting_encoding(bytes(sample)) if wrong else ""
    guessed = bool(fitting) and wrong > 1 and wrong > right
    return TextForm(fitting if guessed else UTF_8, fitting)


def text_records(path: Path, form: TextForm) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the first line of each record of a text file, and its cells (CSV) or its text (JSON lines).

    Blank lines are left out, and so is the line that names the columns.
    """
    lines = _lines(path, form.encoding)
    if READERS[ending(path)] == "json":
        yield from ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        return
    kept = (_LONE_RETURN.sub(_RETURN, each) for each in lines)
    records = _csv_records(chain(kept, [_END]), form)
    for line, found in islice(records, 0 if form.headerless else 1, None):
        cells = [cell.replace(_RETURN, "\r") for cell in found]
        is_blank = not cells or (len(cells) == 1 and cells[0].isspace())  # "" in marks is a cell
        if cells != [_END] and not is_blank:
            yield line, cells


def _csv_records(lines: Iterable[str], form: TextForm) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line of each record, and its cells, of any length."""
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if form.quoted else csv.QUOTE_NONE
    reader, line = csv.reader(lines, delimiter=form.delimiter, quoting=quoting), 1
    limit = csv.field_size_limit(sys.maxsize)
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + 1
    finally:
        csv.field_size_limit(limit)


def read_lines(path: Path, options: TableOptions, faults: Faults) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file of plain text.

    Args:
        path: The file.
        options: The encoding, where the user names one.
        faults: Takes a note of an encoding that was guessed, and counts the lines that are not in it.

    Yields:
        The number of a line, from 1, and its text without white space at its ends; "" for a blank one.
    """
    form = find_encoding(path, options)
    note_guesses(path, form, options, faults)
    for number, line in enumerate(_lines(path, form.encoding), 1):
        faults.rows += 1
        with faults.reading(f"{path}:{number}"):
            _check_decoded(line, form)
            yield number, stripped(line)


def note_guesses(path: Path, form: TextForm, options: TableOptions, faults: Faults) -> None:
    """Take a note of what the user did not say and what is not usual in the form of a file."""
    usual = "\t" if ending(path) == ".tsv" else ","
    found = []
    if form.delimiter not in ("", usual, options.separator):
        found.append(f"the delimiter {form.delimiter!r} (--delimiter names another)")
    if form.encoding != UTF_8 and options.encoding is None:
        found.append(f"the encoding {form.encoding} (--encoding names another)")
    if found:
        faults.note(f"{path} was read with {' and '.join(found)}")


def note_escapes(path: Path, form: TextForm, faults: Faults) -> None:
    """Take a note of the first quotation mark behind a backslash, which CSV reads as the end of a cell."""
    if not form.delimiter or not form.quoted:
        return
    escaped = re.compile(rf'\\"[^"\r\n{re.escape(form.delimiter)}]')
    numbered = enumerate(_lines(path, form.encoding), 1)
    if number := next((number for number, line in numbered if escaped.search(line)), None):
        faults.note(
            f"{path}:{number}: a quotation mark stands behind a backslash, which is read as text. "
            'CSV writes the mark twice (in Spark: option("escape", \'"\'))'
        )


def good_records(path: Path, form: TextForm, faults: Faults) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records that can be read, and count the others.

    Args:
        path: A text file.
        form: How it is decoded and cut.
        faults: Counts the lines that are not in the encoding, are no JSON object, hold half of a surrogate
            pair, have more cells than there are columns, or begin a quoted cell that never ends.

    Yields:
        The first line of the record, and its cells by column; those that a line of CSV leaves out are "".
    """
    for line, record in text_records(path, form):
        try:
            found = _checked(record, form)
        except BadRow as error:
            faults.rows += 1
            faults.bad(error.fault, f"{path}:{line}", str(error), error.detail)
        else:
            yield line, found


def _checked(record: list[str] | str, form: TextForm) -> dict[str, Any]:
    """Return the cells of a record that can be read, by column."""
    for cell in [record] if isinstance(record, str) else record:
        _check_decoded(cell, form)
    if isinstance(record, str):
        found = json_object(record)
        if found is None:
            raise BadRow("no JSON object", f"expected a JSON object; received {excerpt(record.strip())}")
        if "\\u" in record:
            check_object(found)
        return found
    if record[-1].endswith(_END):
        lines = record[-1].removesuffix(_END).rstrip("\r\n").count("\n")
        fault = f"a quoted cell that does not end, with {lines:,} lines behind it"
        raise BadRow(fault, "a quoted cell begins here and does not end")
    width = len(form.header)
    if len(record) > width:
        message = f"expected {width} cells, as in the first line; received {excerpt(record)}"
        raise BadRow("more cells than columns", message)
    return dict(zip_longest(form.header, record, fillvalue=""))


def check_object(record: Any) -> None:
    """Refuse what is no JSON object, or one that UTF-8 cannot hold, by a `BadRow`."""
    if not isinstance(record, dict):
        raise BadRow("no JSON object", f"expected a JSON object; received {excerpt(record)}")
    text = json.dumps(record, ensure_ascii=False)
    try:
        text.encode(UTF_8)
    except UnicodeEncodeError as error:
        received = excerpt(text[max(0, error.start - 20) :])
        message = f"expected texts that UTF-8 can hold; received {received}"
        raise BadRow("half of a surrogate pair", message) from error


def _check_decoded(text: str, form: TextForm) -> None:
    """Refuse a text with a byte that could not be decoded, by a `BadRow` that names the fitting encoding."""
    byte = _ESCAPED.search(text)
    if byte is None:
        return
    name = "UTF-8" if form.encoding == UTF_8 else form.encoding
    hint = f"; if the whole file is in another encoding, name it, such as --encoding {form.fitting}"
    number = ord(byte[0]) & 0xFF
    near = excerpt(text[max(0, byte.start() - 20) :].strip())
    near = near.replace("\\udc", "\\x")  # shows the byte as such
    raise BadRow(f"not {name}", f"not {name}: the byte 0x{number:02x}{hint if form.fitting else ''}", near)


def json_object(line: str) -> dict[str, Any] | None:
    """Return the JSON object that a line holds; None if it holds something else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
