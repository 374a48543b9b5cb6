"""Files as tables of rows, and the line of each row.

A table is not read into memory: its rows are written once to an Arrow file in the cache, which the package
`datasets` maps. The columns have the names that the file gives them; `lexforge.data.pairs` recognises them.
Text files are not opened by the readers of `datasets`: these stop at the first line that they cannot read,
name no line, and make other values of some texts and numbers (see `lexforge.data.json_rows`).
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from lexforge import __version__
from lexforge.common.silent import silent
from lexforge.common.types import DataError
from lexforge.data.faults import BadRow, Faults
from lexforge.data.json_rows import objects_of, write_objects
from lexforge.data.lines import NotDecodable, excerpt, open_bytes, whole_data
from lexforge.data.splits import split_name
from lexforge.data.text_tables import (
    DELIMITERS,
    READERS,
    UTF_8,
    TextForm,
    check_object,
    ending,
    find_encoding,
    good_records,
    json_object,
    note_escapes,
    note_guesses,
    text_form,
    text_records,
    usual_columns,
)
from lexforge.settings import TableOptions
from lexforge.storage.files import cache_folder, write_file

if TYPE_CHECKING:
    from datasets import ClassLabel, Dataset, Features


@dataclass(frozen=True)
class Table:
    """Rows, and where each of them stands in its source.

    Args:
        rows: The rows.
        name: The path of a file, or the name of a data set with its split, for messages.
        numbers: `[rows]` int64, the line at which each row begins, or its number in the source, from 1; None
            where the rows are all those of a source without lines.
        has_lines: Whether the numbers are those of lines.
        headerless: Whether the source is a file of tabs without a line that names the columns.
    """

    rows: Dataset
    name: str
    numbers: NDArray[np.int64] | None = None
    has_lines: bool = False
    headerless: bool = False

    def place(self, row: int) -> str:
        """Return where a row, from 0, stands, such as `file:line`."""
        number = row + 1 if self.numbers is None else self.numbers[row]
        return f"{self.name}:{number}" if self.has_lines else f"{self.name}, row {number} (counted from 1)"

    def made_into(self, rows: Dataset, places: NDArray[np.int64]) -> Table:
        """Return other rows, each of which was made of the row of this table at one of the places, from 0."""
        return replace(self, rows=rows, numbers=places + 1 if self.numbers is None else self.numbers[places])

    def select(self, places: NDArray[np.int64]) -> Table:
        """Return the rows at some places, from 0."""
        return self.made_into(self.rows.select(places), places)


class TextColumn(Sequence[str]):
    """The texts of one column, read from the disk where they are asked for.

    Args:
        rows: The data set.
        column: A column of texts.
    """

    def __init__(self, rows: Dataset, column: str) -> None:
        self._rows = rows.select_columns([column])
        self._column = column

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        """Return one text, or the list of texts of a slice."""
        found: str | list[str] = self._rows[place if isinstance(place, slice) else int(place)][self._column]
        return found

    def __iter__(self) -> Iterator[str]:
        """Yield the texts; a thousand of them are in memory at a time."""
        for batch in self._rows.iter(1000):
            yield from batch[self._column]


def first_columns(path: Path, headers: Sequence[str], options: TableOptions) -> list[str]:
    """Return the columns that the beginning of a file names; no row is converted.

    Args:
        path: A file with an ending of `READERS`.
        headers: Column names that count as a header, as for `text_form`.
        options: The delimiter and the encoding, where the user names them, and what becomes of bad rows.

    Returns:
        The names in the header of a CSV file, the schema of a parquet file or the first line of JSON lines;
        none where more of the file must be read.

    Raises:
        DataError: If the first line of a text file cannot be read, or no row stands below the header.
    """
    reader = READERS[ending(path)]
    if reader == "parquet":
        return _columns_of_parquet(path)
    try:
        if reader == "csv":
            form = text_form(path, headers, options, TextForm(options.codec or UTF_8))
            if next(text_records(path, form), None) is None:
                raise DataError(f"{path} holds no row")
            return list(form.header)
        # Where bad rows are left out, the first line may be one of them, and tells nothing.
        if options.encoding is not None or options.bad_rows == "skip" or _is_whole(path):
            return []
        _, line = next(text_records(path, TextForm()), (0, None))
        if line is None:
            raise DataError(f"{path} holds no row: it is empty")
        return list(json_object(str(line)) or {})
    except NotDecodable:
        return []


def _columns_of_parquet(path: Path) -> list[str]:
    """Return the columns of a parquet file.

    Raises:
        DataError: If it is none, or holds no row, which `datasets` tells in words that name neither.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        found = parquet.read_metadata(path)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} cannot be read as parquet: {error}") from error
    if not found.num_rows:
        raise DataError(f"{path} holds no row")
    return found.schema.to_arrow_schema().names


def named_tables(name: str, loaded: Mapping[str, Dataset]) -> dict[str, Table]:
    """Return the splits of a data set as tables; `validation` is called `dev`."""
    found: dict[str, Table] = {}
    for split, rows in loaded.items():
        if (known := split_name(split)) in found:
            raise DataError(f"{name}: {sorted(loaded)} hold the split {known!r} twice")
        found[known] = Table(rows, f"{name} [{split}]")
    return found


def class_lists(features: Features) -> dict[str, ClassLabel]:
    """Return the columns that hold lists of numbers of classes, each with what names the classes."""
    from datasets import ClassLabel

    parts = {column: getattr(feature, "feature", None) for column, feature in features.items()}
    return {column: part for column, part in parts.items() if isinstance(part, ClassLabel)}


def class_names(record: Mapping[str, Any], classes: Mapping[str, ClassLabel]) -> dict[str, list[str] | None]:
    """Return the names of the classes in each such column of a row.

    Raises:
        DataError: If a number has no name, as -1 for a text that nobody has labelled.
    """
    found: dict[str, list[str] | None] = {}
    for column, known in classes.items():
        numbers = record[column]
        try:
            found[column] = numbers and known.int2str(numbers)
        except (TypeError, ValueError) as error:
            last = known.num_classes - 1
            raise DataError(
                f"{column!r} must hold numbers of classes from 0 to {last}; received {excerpt(numbers)}"
            ) from error
    return found


def load_by_datasets(path: str, load: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a loader of `datasets`, and turn its errors into a `DataError` that names the data set.

    Args:
        path: The name of the data set.
        load: A function of `datasets`.
        *arguments: The arguments of the function.
        **options: Its keyword arguments.

    Returns:
        What the function returns.

    Raises:
        DataError: If the function fails.
    """
    from datasets.exceptions import DatasetsError

    try:
        return load(*arguments, **options)
    except StopIteration as error:  # what the JSON reader raises for an empty file
        raise DataError(f"the data set {path!r} holds no row: it is empty") from error
    # EOFError: a .gz file that was cut; RuntimeError: a data set that its own script would load; TypeError: a
    # line of JSON that is no object, behind lines with values of several types; OverflowError: an integer
    # beyond 64 bits in a list.
    except (OSError, EOFError, TypeError, OverflowError, ValueError, RuntimeError, DatasetsError) as error:
        reason = str(error) if error.__cause__ is None else f"{error}: {error.__cause__}"
        raise DataError(f"the data set {path!r} cannot be loaded: {' '.join(reason.split())}") from error


def find_column(
    where: object, names: Sequence[str], role: str, usual: Sequence[str], given: str | None, flag: str
) -> str:
    """Return the one column of a table that plays a role.

    Args:
        where: The source, for the message.
        names: The columns of the table.
        role: What the column holds, for the message.
        usual: The names by which the column is recognised; capital letters and white space do not matter.
        given: The name that the user gives; None recognises it.
        flag: The option that names it, for the message.

    Raises:
        DataError: If no column or several have such a name.
    """
    candidates = list(usual) if given is None else [given]
    found = usual_columns(usual, names) if given is None else [name for name in candidates if name in names]
    if len(found) != 1:
        marks = DELIMITERS if len(names) > 1 else f",{DELIMITERS}"
        mark = next((mark for mark in marks if any(mark in name for name in names)), "")
        other = "tab" if mark == "\t" else mark
        hint = f', or name what stands between the columns, such as --delimiter "{other}"' if mark else ""
        raise DataError(
            f"{where}: expected one {role} column out of {candidates}; received {found} among "
            f"{excerpt(list(names))}. Name it by {flag}{hint}"
        )
    return found[0]


def read_table(path: Path, headers: Sequence[str], options: TableOptions, faults: Faults) -> Table:
    """Open a file as a table.

    Args:
        path: A file with an ending of `READERS`.
        headers: Column names that count as a header in a .tsv file, as for `text_form`.
        options: The delimiter and the encoding, where the user names them.
        faults: Counts the lines that cannot be read, and takes a note of what was guessed.

    Returns:
        The table; every cell of a CSV file is a text. Lines that cannot be read are left out.

    Raises:
        DataError: If the file cannot be read, or if it holds no row. The message names the line where that is
            known.
    """
    if READERS[ending(path)] == "parquet":
        return Table(_rows_of_parquet(path), str(path))
    if _is_whole(path):
        objects = _whole_objects(path)
        return Table(rows_in_cache(path, "", lambda: objects), str(path))
    form = text_form(path, headers, options, find_encoding(path, options))
    lines = np.fromiter((line for line, _ in good_records(path, form, faults)), np.int64)
    if not len(lines):
        faults.refuse_nothing_left()

    def records() -> Iterator[dict[str, Any]]:
        return (record for _, record in good_records(path, form, Faults(str(path))))

    rows = rows_in_cache(path, repr(form), records, form.header)
    if len(rows) != len(lines):  # the file was changed, and has its old size and time
        raise DataError(
            f"{path}: {len(lines)} rows were found, and {len(rows)} are in the cache; touch the file"
        )
    note_escapes(path, form, faults)
    note_guesses(path, form, options, faults)
    return Table(rows, str(path), lines, True, form.headerless)


def _rows_of_parquet(path: Path) -> Dataset:
    """Open a parquet file by `datasets`."""
    import datasets

    _columns_of_parquet(path)  # refuses what is none
    files = {"train": glob.escape(str(path))}  # `datasets` takes it for a pattern
    with silent("datasets"):  # it would also print the error that is raised
        loaded = load_by_datasets(str(path), datasets.load_dataset, "parquet", data_files=files)
    return loaded["train"]


def rows_in_cache(
    path: Path, form: str, records: Callable[[], Iterable[Mapping[str, Any]]], texts: Sequence[str] = ()
) -> Dataset:
    """Open the rows of a text file from an Arrow file in the cache, which is written where it is missing.

    Args:
        path: The text file.
        form: How it is decoded and cut.
        records: Yields the rows; it may be called twice.
        texts: The columns, where all of them hold texts; empty where other values may come.
    """
    import datasets

    status = path.stat()
    key = f"{__version__} {path.resolve()} {status.st_size} {status.st_mtime_ns} {form}"
    copy = cache_folder("tables") / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.arrow"
    if not copy.is_file():
        write_file(copy, partial(write_objects, records, texts))
    return datasets.Dataset.from_file(str(copy))


def _is_whole(path: Path) -> bool:
    """Return whether a file .json is no list of lines: it holds an array, or objects over several lines.

    One object alone is none either, because the rows may be in it.
    """
    if ending(path) != ".json":
        return False
    records = text_records(path, TextForm())
    first = str(next(records, (1, ""))[1]).strip()
    if first == "null":
        return False
    return first.startswith("[") or next(records, None) is None or json_object(first) is None


def _whole_objects(path: Path) -> list[dict[str, Any]]:
    """Parse a file of JSON that is no list of lines.

    Raises:
        DataError: If it is no JSON, holds no row or something else than rows, or half of a surrogate pair.
    """
    try:
        with whole_data(path), open_bytes(path) as stream:
            content = stream.read().decode("utf-8-sig")
        found = list(objects_of(content))
    except (ValueError, RecursionError) as error:  # ValueError: also a number of more than 4300 digits
        raise DataError(f"{path} cannot be read as JSON in UTF-8: {error}") from error
    if not found:
        raise DataError(f"{path} holds no row")
    for row, record in enumerate(found):
        try:
            check_object(record)
        except BadRow as error:
            raise DataError(f"{path}, row {row + 1} (counted from 1): {error}") from error
    if len(found) == 1 and not content.lstrip().startswith("[") and not _is_row(found[0]):
        raise DataError(
            f"{path} holds one JSON object, which is no row: expected an array of rows, as pandas writes "
            'by orient="records", or a row per line, and a row for each question where they are nested, '
            f"as in SQuAD's files; received the fields {excerpt(list(found[0]))}"
        )
    return found


def _is_row(record: Mapping[str, Any]) -> bool:
    """Return whether one object alone is a row: it holds a text, and no list of objects, which are rows."""
    cells = record.values()
    nested = (cell[0] for cell in cells if isinstance(cell, list) and cell)
    return any(isinstance(cell, str) for cell in cells) and not any(isinstance(each, dict) for each in nested)
