"""Tables of rows from files, folders and the hub, opened by the readers of the package `datasets`.

A table is not read into memory: `datasets` converts it once to an Arrow file in its cache and maps that file.
The columns have the names that the source gives them; `lexforge.data.pairs` recognises them.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lexforge.data.lines import excerpt, numbered_lines, open_bytes
from lexforge.data.retrieval_data import (
    DataError,
    check_fractions,
    hash_position,
    missing_split,
    split_at,
    split_name,
)
from lexforge.storage.files import cache_folder, write_file

if TYPE_CHECKING:
    from datasets import Dataset

Row = TypeVar("Row")
PREFIX = "hf:"
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


def is_table(source: str) -> bool:
    """Return whether a name on a command line stands for tables of rows.

    Args:
        source: A file with an ending of `READERS`, a folder of such files, a folder of `save_to_disk`, or
            `hf:organisation/name:configuration`. A folder in BEIR layout holds `corpus.jsonl` and is none.
    """
    path = Path(source)
    if source.startswith(PREFIX) or ending(path) in READERS:
        return True
    if not path.is_dir() or any(path.glob("corpus.jsonl*")) or any(path.glob("collection.tsv*")):
        return False
    return _is_saved(path) or bool(_files_by_split(path))


def load_tables(source: str, known: Sequence[str] = ()) -> dict[str, Table]:
    """Open the tables of a source.

    Args:
        source: What `is_table` accepts. A file is the split `train`, unless it has a column `split`. In a
            folder the name of a file begins with that of its split: train, dev or validation, test.
        known: Column names that count as a header in a .tsv file. A .tsv file of two or three columns whose
            first line holds none of them has no header: it holds queries, positives and negatives.

    Returns:
        Split -> table; `validation` is called `dev`.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        DataError: If `datasets` cannot read the source, or if it holds no row. The message names the line
            where that is known.
    """
    if source.startswith(PREFIX):
        name, _, configuration = source.removeprefix(PREFIX).partition(":")
        return hub_tables(name, configuration or None)
    path = Path(source)
    files = table_files(path)
    if not files:
        return _saved(path)
    if path.is_dir():
        return {split: _read(file, known) for split, file in files.items()}
    return _by_split_column(_read(path, known))


def table_files(path: Path) -> dict[str, Path]:
    """Find the files of a source.

    Args:
        path: A file, or a folder.

    Returns:
        Split -> file; a file alone is the split `train`. There are none in a folder of `save_to_disk`.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        DataError: If a folder holds no file of a split, or two files of one.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}")
    if not path.is_dir():
        return {"train": path}
    if _is_saved(path):
        return {}
    files = _files_by_split(path)
    if not files:
        raise DataError(f"{path} holds no file whose name begins with train, dev, validation or test")
    return files


def first_columns(path: Path, known: Sequence[str] = ()) -> list[str]:
    """Return the columns that the beginning of a file names; no row is converted.

    Args:
        path: A file with an ending of `READERS`.
        known: Column names that count as a header, as for `load_tables`.

    Returns:
        The names in the header of a CSV file, the schema of a parquet file or the first line of JSON lines;
        none where more of the file must be read.
    """
    reader = READERS[ending(path)]
    if reader == "csv":
        return _header(path, known)[0]
    if reader == "json":
        line = next((line for _, line in numbered_lines(path) if line.strip()), "")
        return list(json.loads(line)) if _is_json_object(line) else []
    from pyarrow import parquet

    return [] if path.suffix in (".gz", ".zst") else parquet.read_schema(path).names


def hub_tables(name: str, configuration: str | None = None) -> dict[str, Table]:
    """Open the splits of a data set of the hub, or of a folder that `datasets.load_dataset` reads.

    Args:
        name: Organisation and name, or a folder.
        configuration: The configuration; None takes the only one.

    Returns:
        Split -> table; `validation` is called `dev`.

    Raises:
        DataError: If the data set cannot be loaded; the message says why.
    """
    import datasets

    arguments = (name,) if configuration is None else (name, configuration)
    return _named(name, load_by_datasets(name, datasets.load_dataset, *arguments))


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


def _named(name: str, loaded: Mapping[str, Any]) -> dict[str, Table]:
    return {split_name(split): Table(rows, Origin(f"{name} [{split}]")) for split, rows in loaded.items()}


def column_of(where: str, names: Sequence[str], usual: Sequence[str], given: str | None, flag: str) -> str:
    """Return the one column of a table that plays a role.

    Args:
        where: The source, for the message.
        names: The columns of the table.
        usual: The names by which the column is recognised.
        given: The name that the user gives; None recognises it.
        flag: The option that names it, for the message.

    Raises:
        DataError: If no column or several have such a name.
    """
    candidates = list(usual) if given is None else [given]
    found = [name for name in candidates if name in names]
    if len(found) != 1:
        others = f" (or {candidates[1:]})" if len(candidates) > 1 else ""
        raise DataError(
            f"{where}: expected a column {candidates[0]!r}{others}; received {excerpt(sorted(names))}. "
            f"Name it by {flag}"
        )
    return found[0]


def as_number(value: object) -> object:
    """Return the number that a cell of a CSV file spells, and any other value as it is."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def missing_shares(
    name: str, known: Sequence[str], wanted: Sequence[str], share: float | None
) -> dict[str, float]:
    """Return the share of train that each wanted split gets which the data lack.

    Args:
        name: The name of the set, for the message.
        known: The splits of the data.
        wanted: The splits that the caller needs.
        share: The share of each; None holds nothing out.

    Returns:
        Split -> share, empty if nothing is missing.

    Raises:
        ValueError: If a split is missing that cannot be held out.
    """
    missing = [split for split in wanted if split not in known]
    for split in missing:
        if share is None or split == "train" or "train" not in known:
            raise missing_split(name, split, known)
    return {} if share is None else dict.fromkeys(missing, share)


def hold_out_rows(
    name: str,
    splits: Mapping[str, list[Row]],
    fractions: Mapping[str, float],
    text_of: Callable[[Row], str],
) -> dict[str, list[Row]]:
    """Move rows of the split train to new splits by the hash of a text; rows of one text stay together.

    Args:
        name: The name of the set, for messages.
        splits: Split -> rows.
        fractions: New split -> share of train; empty changes nothing.
        text_of: Returns the text of a row.

    Raises:
        ValueError: If the shares leave nothing for train, or if a split would be empty.
    """
    if not fractions:
        return dict(splits)
    check_fractions(name, fractions, list(splits))
    parts: dict[str, list[Row]] = {split: [] for split in (*fractions, "train")}
    for row in splits["train"]:
        parts[split_at(hash_position(text_of(row)), fractions, "train")].append(row)
    for split, rows in parts.items():
        if not rows:
            raise ValueError(f"{name}: no row of the split 'train' falls to {split!r}")
    return {**splits, **parts}


def ending(path: Path) -> str:
    """Return the file ending without .gz or .zst, such as ".jsonl"."""
    return (path.with_suffix("") if path.suffix in (".gz", ".zst") else path).suffix.lower()


def _is_saved(folder: Path) -> bool:
    """Return whether `save_to_disk` wrote the folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _saved(folder: Path) -> dict[str, Table]:
    import datasets

    loaded = load_by_datasets(str(folder), datasets.load_from_disk, str(folder))
    if isinstance(loaded, dict):
        return _named(str(folder), loaded)
    return _by_split_column(Table(loaded, Origin(str(folder))))


def _files_by_split(folder: Path) -> dict[str, Path]:
    """Return the tables of a folder by the split that the name of each begins with."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        split = split_name(path.name.split(".")[0].split("-")[0].split("_")[0])
        if path.is_file() and ending(path) in READERS and split in ("train", "dev", "test"):
            if split in found:
                raise DataError(f"{folder}: {found[split].name} and {path.name} are both the split {split!r}")
            found[split] = path
    return found


def _read(path: Path, known: Sequence[str]) -> Table:
    """Open one file."""
    import datasets

    plain = _decompressed(path) if path.suffix == ".zst" else path
    reader, header, options = READERS[ending(path)], 0, {}
    if reader == "csv":
        options = _csv_options(path, known)
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


def _csv_options(path: Path, known: Sequence[str]) -> dict[str, Any]:
    """Return what the CSV reader is told: every cell is text, and nothing is a missing value.

    Without this, pandas reads an answer "1984" as a number and "NA" as nothing.
    """
    import datasets

    header, written = _header(path, known)
    options = _csv_dialect(path) | ({} if written else {"header": None, "names": header})
    features = datasets.Features({name: datasets.Value("string") for name in header})
    return options | {"features": features, "keep_default_na": False, "na_filter": False}


def _header(path: Path, known: Sequence[str]) -> tuple[list[str], bool]:
    """Return the columns of a CSV file, and whether they are written in its first line."""
    tabs = ending(path) == ".tsv"
    first = next((line for _, line in numbered_lines(path)), "")
    header = first.split("\t") if tabs else next(csv.reader([first]), [])
    if tabs and 2 <= len(header) <= 3 and not set(header) & {*known, SPLIT}:
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


def _by_split_column(table: Table) -> dict[str, Table]:
    """Return the rows by the value of their column `split`; without it they are the split `train`."""
    rows, origin = table
    if SPLIT not in rows.column_names:
        return {"train": table}
    values = np.array([split_name(str(value)) for value in rows[SPLIT]])
    found = {}
    for split in dict.fromkeys(values.tolist()):
        chosen = np.flatnonzero(values == split)
        found[str(split)] = Table(rows.select(chosen).remove_columns(SPLIT), replace(origin, chosen=chosen))
    return found
