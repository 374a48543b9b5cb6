"""Files as tables of rows, opened by the readers of the package `datasets`, and the line of each row.

A table is not read into memory: `datasets` converts it once to an Arrow file in its cache and maps that file.
The columns have the names that the file gives them; `lexforge.data.pairs` recognises them. What `datasets`
does not give is added here: the line of a wrong row, the line for which a file cannot be read, files of tabs
without a header, and .zst.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lexforge.common.types import DataError
from lexforge.data.lines import excerpt, numbered_lines, open_bytes
from lexforge.data.splits import split_name
from lexforge.storage.files import cache_folder, write_file

if TYPE_CHECKING:
    from datasets import Dataset

# File ending -> reader of `datasets`. Each file may also end in .gz or .zst.
READERS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
}
SPLIT = "split"
# MS MARCO publishes triples of texts without a header.
_HEADERLESS = ("anchor", "positive", "negative")


@dataclass(frozen=True)
class Origin:
    """Where the rows of a table stand, for error messages.

    Args:
        name: The path of a file, or the name of a data set with its split.
        header: Number of records before the first row: 1 in a CSV file with a header.
        chosen: `[rows]` int64, the row of the source that each row was; None where they are all its rows.
    """

    name: str
    header: int = 0
    chosen: NDArray[np.int64] | None = None

    def place(self, row: int) -> RowPlace:
        """Return where a row of the table, from 0, stands."""
        return RowPlace(self, row if self.chosen is None else int(self.chosen[row]))


class RowPlace(NamedTuple):
    """A row of a source; its text names the line, which is counted only when an error is written."""

    origin: Origin
    row: int

    def __str__(self) -> str:
        """Return `file:line`, or the number of the row where the source has no lines."""
        path = Path(self.origin.name)
        if READERS.get(ending(path)) in ("csv", "json") and path.is_file():
            line = _line_of(path, self.origin.header + self.row)
            if line is not None:
                return f"{path}:{line}"
        return f"{self.origin.name}, row {self.row + 1} (counted from 1)"


class Table(NamedTuple):
    """Rows with the columns of their source, and where they stand in it."""

    rows: Dataset
    origin: Origin


def first_columns(path: Path, headers: Sequence[str] = ()) -> list[str]:
    """Return the columns that the beginning of a file names; no row is converted.

    Args:
        path: A file with an ending of `READERS`.
        headers: Column names that count as a header, as for `read_table`.

    Returns:
        The names in the header of a CSV file, the schema of a parquet file or the first line of JSON lines;
        none where more of the file must be read.
    """
    reader = READERS[ending(path)]
    if reader == "csv":
        return _header(path, headers)[0]
    if reader == "json":
        line = next((line for _, line in numbered_lines(path) if line.strip()), "")
        return list(json.loads(line)) if _is_json_object(line) else []
    from pyarrow import parquet

    return [] if path.suffix in (".gz", ".zst") else parquet.read_schema(path).names


def named_tables(name: str, loaded: Mapping[str, Dataset]) -> dict[str, Table]:
    """Return the splits of a data set as tables; `validation` is called `dev`."""
    return {split_name(split): Table(rows, Origin(f"{name} [{split}]")) for split, rows in loaded.items()}


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
    except (OSError, EOFError, ValueError, DatasetsError) as error:  # EOFError: a .gz file that was cut
        reason = error if error.__cause__ is None else f"{error}: {error.__cause__}"
        raise DataError(f"the data set {path!r} cannot be loaded: {reason}") from error


def find_column(
    where: object, names: Sequence[str], role: str, usual: Sequence[str], given: str | None, flag: str
) -> str:
    """Return the one column of a table that plays a role.

    Args:
        where: The source, for the message.
        names: The columns of the table.
        role: What the column holds, for the message.
        usual: The names by which the column is recognised.
        given: The name that the user gives; None recognises it.
        flag: The option that names it, for the message.

    Raises:
        DataError: If no column or several have such a name.
    """
    candidates = list(usual) if given is None else [given]
    found = [name for name in candidates if name in names]
    if len(found) != 1:
        raise DataError(
            f"{where}: expected one {role} column out of {candidates}; received {found} among "
            f"{excerpt(list(names))}. Name it by {flag}"
        )
    return found[0]


def ending(path: Path) -> str:
    """Return the file ending without .gz or .zst, such as ".jsonl"."""
    return (path.with_suffix("") if path.suffix in (".gz", ".zst") else path).suffix.lower()


def read_table(path: Path, headers: Sequence[str] = ()) -> Table:
    """Open a file as a table.

    Args:
        path: A file with an ending of `READERS`.
        headers: Column names that count as a header in a .tsv file. A .tsv file of two or three columns whose
            first line holds none of them has no header: it holds queries, positives and negatives.

    Returns:
        The table; every cell of a CSV file is a text.

    Raises:
        DataError: If `datasets` cannot read the file, or if it holds no row. The message names the line where
            that is known.
    """
    import datasets

    plain = _decompressed(path) if path.suffix == ".zst" else path
    reader, header, options = READERS[ending(path)], 0, {}
    if reader == "csv":
        options = _csv_options(path, headers)
        header = int("header" not in options)
    try:
        loaded = load_by_datasets(
            str(path), datasets.load_dataset, reader, data_files={"train": str(plain)}, **options
        )
    except DataError as error:
        if reader != "parquet":
            _name_the_line(path, str(error))
        raise
    if not len(loaded["train"]):
        raise DataError(f"{path} holds no row")
    return Table(loaded["train"], Origin(str(path), header))


def _name_the_line(path: Path, reason: str) -> None:
    """Find the line of a text file for which `datasets` refused it.

    Args:
        path: The file.
        reason: What `datasets` says.

    Raises:
        DataError: If a line is not UTF-8, is no JSON object, has more cells than the first one, or begins a
            quoted cell that never ends; other faults are left to the message of `datasets`.
    """
    for _ in numbered_lines(path):
        pass
    line = width = 0
    for number, (line, record) in enumerate(_text_records(path)):
        if isinstance(record, list):
            width = width or len(record)
            if len(record) > width:
                raise DataError(
                    f"{path}:{line}: expected {width} cells, as in the first line; received {excerpt(record)}"
                )
        elif not _is_json_object(record):
            if number == 0 and ending(path) == ".json":
                return  # an array, or objects over several lines
            raise DataError(f"{path}:{line}: expected a JSON object; received {excerpt(record.strip())}")
    if "EOF inside string" in reason:
        raise DataError(f"{path}:{line}: a quoted cell begins here and does not end")


def _line_of(path: Path, number: int) -> int | None:
    """Return the first line of a record of a text file, both from 1 and 0; None if lines are no records."""
    for place, (line, record) in enumerate(_text_records(path)):
        if isinstance(record, str) and not _is_json_object(record):
            return None  # an array, or objects over several lines
        if place == number:
            return line
    return None


def _text_records(path: Path) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the first line of each record of a text file, and its cells (CSV) or its text (JSON lines).

    Blank lines are left out, as the readers of `datasets` do.
    """
    limit = csv.field_size_limit(sys.maxsize)
    try:
        with open_bytes(path) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
            if READERS[ending(path)] == "json":
                yield from ((number, line) for number, line in enumerate(text, 1) if line.strip())
                return
            reader, line = csv.reader(text, **_csv_dialect(path)), 1
            for cells in reader:
                if len(cells) > 1 or "".join(cells).strip():
                    yield line, cells
                line = reader.line_num + 1
    finally:
        csv.field_size_limit(limit)


def _is_json_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _csv_dialect(path: Path) -> dict[str, Any]:
    """Return how a file is cut into cells; a .tsv file has no quoting."""
    return {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if ending(path) == ".tsv" else {}


def _csv_options(path: Path, headers: Sequence[str]) -> dict[str, Any]:
    """Return what the CSV reader is told: every cell is text, and nothing is a missing value.

    Without this, pandas reads an answer "1984" as a number and "NA" as nothing.
    """
    import datasets

    header, written = _header(path, headers)
    options = _csv_dialect(path) | ({} if written else {"header": None, "names": header})
    features = datasets.Features({name: datasets.Value("string") for name in header})
    return options | {"features": features, "keep_default_na": False, "na_filter": False}


def _header(path: Path, headers: Sequence[str]) -> tuple[list[str], bool]:
    """Return the columns of a CSV file, and whether they are written in its first line."""
    tabs = ending(path) == ".tsv"
    first = next((line for _, line in numbered_lines(path)), "")
    header = first.split("\t") if tabs else next(csv.reader([first]), [])
    if tabs and 2 <= len(header) <= 3 and not set(header) & {*headers, SPLIT}:
        return list(_HEADERLESS[: len(header)]), False
    return header, True


def _decompressed(path: Path) -> Path:
    """Return a copy of a .zst file without compression, made once: `datasets` would need another package."""
    status = path.stat()
    key = f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
    name = f"{hashlib.sha256(key.encode()).hexdigest()[:16]}{ending(path)}"
    copy = cache_folder() / "tables" / name
    if not copy.is_file():
        copy.parent.mkdir(parents=True, exist_ok=True)

        def write(place: Path) -> None:
            with open_bytes(path) as stream, place.open("wb") as out:
                shutil.copyfileobj(stream, out, 2**20)

        write_file(copy, write)
    return copy
