"""Tables of rows from files, folders and the hub, opened by the readers of the package `datasets`.

A table is not read into memory: `datasets` converts it once to an Arrow file in its cache and maps that file.
The columns have the names that the source gives them; `lexforge.data.pairs` recognises them.
"""

from __future__ import annotations

import csv
import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lexforge.common.cache import cache_folder
from lexforge.common.files import write_file
from lexforge.data.lines import excerpt, numbered_lines, open_bytes
from lexforge.data.retrieval_data import (
    DataError,
    check_fractions,
    hash_position,
    missing_split,
    split_at,
    split_name,
)

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


def load_tables(source: str, known: Sequence[str] = ()) -> dict[str, Dataset]:
    """Open the tables of a source.

    Args:
        source: What `is_table` accepts. A file is the split `train`, unless it has a column `split`. In a
            folder the name of a file begins with that of its split: train, dev or validation, test.
        known: Column names that count as a header in a .tsv file. A .tsv file of two or three columns whose
            first line holds none of them has no header: it holds queries, positives and negatives.

    Returns:
        Split -> rows; `validation` is called `dev`.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        DataError: If `datasets` cannot read the source, or if it holds no row.
    """
    if source.startswith(PREFIX):
        name, _, configuration = source.removeprefix(PREFIX).partition(":")
        return hub_tables(name, configuration or None)
    path = Path(source)
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {source}")
    if path.is_dir():
        if _is_saved(path):
            return _saved(path)
        files = _files_by_split(path)
        if not files:
            raise DataError(f"{source} holds no file whose name begins with train, dev, validation or test")
        return {split: _read(file, known) for split, file in files.items()}
    return _by_split_column(_read(path, known))


def hub_tables(name: str, configuration: str | None = None) -> dict[str, Dataset]:
    """Open the splits of a data set of the hub, or of a folder that `datasets.load_dataset` reads.

    Args:
        name: Organisation and name, or a folder.
        configuration: The configuration; None takes the only one.

    Returns:
        Split -> rows; `validation` is called `dev`.

    Raises:
        DataError: If the data set cannot be loaded; the message says why.
    """
    import datasets

    arguments = (name,) if configuration is None else (name, configuration)
    return _named(load_by_datasets(name, datasets.load_dataset, *arguments))


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
    except (OSError, ValueError, DatasetsError) as error:
        reason = error if error.__cause__ is None else f"{error}: {error.__cause__}"
        raise DataError(f"the data set {path!r} cannot be loaded: {reason}") from error


def _named(loaded: Mapping[str, Any]) -> dict[str, Dataset]:
    return {split_name(split): rows for split, rows in loaded.items()}


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


def check_share(share: float | None) -> None:
    """Refuse a share to hold out that is not in (0, 1).

    Raises:
        ValueError: If it is out of range.
    """
    if share is not None and not 0 < share < 1:
        raise ValueError(f"hold_out must lie between 0 and 1; received {share}")


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


def _saved(folder: Path) -> dict[str, Dataset]:
    import datasets

    loaded = load_by_datasets(str(folder), datasets.load_from_disk, str(folder))
    return _named(loaded) if isinstance(loaded, dict) else _by_split_column(loaded)


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


def _read(path: Path, known: Sequence[str]) -> Dataset:
    """Open one file."""
    import datasets

    plain = _decompressed(path) if path.suffix == ".zst" else path
    options: dict[str, Any] = {}
    if READERS[ending(path)] == "csv":
        options = _csv_options(path, known)
    loaded = load_by_datasets(
        str(path), datasets.load_dataset, READERS[ending(path)], data_files={"train": str(plain)}, **options
    )
    if not len(loaded["train"]):
        raise DataError(f"{path} holds no row")
    return loaded["train"]


def _csv_options(path: Path, known: Sequence[str]) -> dict[str, Any]:
    """Return what the CSV reader is told: every cell is text, and nothing is a missing value.

    Without this, pandas reads an answer "1984" as a number and "NA" as nothing.
    """
    import datasets

    tabs = ending(path) == ".tsv"
    first = next((line for _, line in numbered_lines(path)), "")
    header = first.split("\t") if tabs else next(csv.reader([first]), [])
    options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {}
    if tabs and 2 <= len(header) <= 3 and not set(header) & {*known, SPLIT}:
        header = list(_HEADERLESS[: len(header)])
        options |= {"header": None, "names": header}
    features = datasets.Features({name: datasets.Value("string") for name in header})
    return options | {"features": features, "keep_default_na": False, "na_filter": False}


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


def _by_split_column(rows: Dataset) -> dict[str, Dataset]:
    """Return the rows by the value of their column `split`; without it they are the split `train`."""
    if SPLIT not in rows.column_names:
        return {"train": rows}
    import numpy as np

    values = np.array([split_name(str(value)) for value in rows[SPLIT]])
    return {
        str(split): rows.select(np.flatnonzero(values == split)).remove_columns(SPLIT)
        for split in dict.fromkeys(values.tolist())
    }
