"""Rows of texts: a file of any table type, a folder with a file for each split, or one of `save_to_disk`.

The rows stay on the disk (see `lexforge.data.tables`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lexforge.common.types import DataError
from lexforge.data.columns import ANCHOR, POSITIVE
from lexforge.data.faults import BadRow, Faults
from lexforge.data.formats.beir import is_corpus
from lexforge.data.formats.texts import is_text, names_below
from lexforge.data.json_rows import ROUNDED
from lexforge.data.lines import NotDecodable, counted, excerpt, numbered_lines, require_texts
from lexforge.data.pair_data import PairData
from lexforge.data.pairs import ALIASES, HEADERS, columns_of_split, find_roles
from lexforge.data.retrieval_data import untitled
from lexforge.data.splits import DEV, TEST, TRAIN, split_name, split_of_row
from lexforge.data.tables import (
    Table,
    TextColumn,
    first_columns,
    load_by_datasets,
    named_tables,
    read_table,
)
from lexforge.data.text_tables import READERS, SPLIT, ending, usual_column, usual_name
from lexforge.settings import SourceOptions, TableOptions

# The columns of rows that hold a document each, in small letters; of several names the first that is there
# counts.
_TEXTS = (
    "text",
    "contents",
    "content",
    "body",
    "body_text",
    "document",
    "passage",
    "abstract",
    "description",
)
_TITLES = ("title", "headline", "heading", "name")
_PARTS = {"id": ("_id", "id", "docid", "doc_id", "document_id", "pid"), "title": _TITLES, "text": _TEXTS}
_SAVED = ("dataset_dict.json", "state.json")  # one of them is in each folder of `save_to_disk`
_NOTES = ("README", "LICENSE", "LICENCE", "CHANGELOG")  # how names of files begin that tell about rows

NAME = (
    "rows of texts (a file .parquet, or .csv, .tsv or .jsonl, also .gz or .zst; a folder of such files by "
    "split; a folder of `save_to_disk`)"
)


def matches(source: str) -> bool:
    """Return whether a source is such a file or folder; `corpus.jsonl` and a folder with it are BEIR's."""
    path = Path(source)
    if not path.is_dir():
        return path.is_file() and ending(path) in READERS and not is_corpus(path)
    return not any(path.glob("corpus.jsonl*")) and (_is_saved(path) or bool(_files_by_split(path)))


def tables(source: str, headers: Sequence[str], options: TableOptions, faults: Faults) -> dict[str, Table]:
    """Open the tables of a source, divided into splits; see `undivided`.

    Returns:
        Split -> table; `validation` is called `dev`. A file is the split `train`, unless it has a column
        `split`.
    """
    found: dict[str, Table] = {}
    for split, table in undivided(source, headers, options, faults):
        found |= _by_split_column(table) if split is None else {split: table}
    return found


def undivided(
    source: str, headers: Sequence[str], options: TableOptions, faults: Faults
) -> list[tuple[str | None, Table]]:
    """Open the tables of a source.

    Args:
        source: What `matches` accepts. In a folder the name of a file begins with that of its split: train,
            dev or validation, test.
        headers: Column names that count as a header in a .tsv file, as for `lexforge.data.tables.read_table`.
        options: The delimiter and the encoding of text files, where the user names them.
        faults: Counts the lines that cannot be read.

    Returns:
        Split and table; None stands for the splits that a column may name.

    Raises:
        DataError: If `datasets` cannot read the source, or if it holds no row. The message names the line
            where that is known.
    """
    path = Path(source)
    if not path.is_dir():
        return [(None, read_table(path, headers, options, faults))]
    if not _is_saved(path):
        files = _files_by_split(path)
        found = {split: read_table(file, headers, options, faults) for split, file in files.items()}
        others = sorted(file for file in path.iterdir() if file.is_file() and ending(file) in READERS)
        if unread := [file.name for file in others if file not in files.values()]:
            why = "because no split begins their names"
            faults.note(f"{source}: tables that are not read, {why}: {counted(unread)}")
        for split, table in found.items():
            _refuse_other_split(split, table)
        return [*found.items()]
    import datasets

    loaded = load_by_datasets(source, datasets.load_from_disk, source)
    if isinstance(loaded, dict):
        return [*named_tables(source, loaded).items()]
    return [(None, Table(loaded, source))]


def open(source: str, options: SourceOptions, splits: Sequence[str] | None, faults: Faults) -> PairData:
    """Open the rows of all splits; see `Format.open`."""
    found = tables(source, _headers(options), options, faults)
    return PairData.of_tables(source, found, options.columns, faults)


def titled(
    source: str, options: SourceOptions, notes: list[str]
) -> Iterator[tuple[object, str | int, str, str]]:
    """Yield the documents; see `Format.titled`.

    Raises:
        DataError: If a folder holds texts beside the rows, which would be left out in silence.
    """
    _refuse_texts_beside(Path(source))
    faults = Faults(source, options.bad_rows)
    found = tables(source, (*_headers(options), *_TEXTS), options, faults)
    return titled_tables(source, found, options, faults, notes)


def titled_tables(
    source: str, found: Mapping[str, Table], options: SourceOptions, faults: Faults, notes: list[str]
) -> Iterator[tuple[object, str | int, str, str]]:
    """Yield the documents of tables, wherever they come from: one a row, or those of pairs.

    Args:
        source: The name of the source.
        found: Split -> table.
        options: Names of columns.
        faults: Counts the rows that cannot be used; it is finished here.
        notes: What was left out is added here once all has been read.

    Yields:
        As `Format.titled`.

    Raises:
        DataError: If rows hold neither documents nor pairs, or if a row is bad and bad rows are refused.
    """
    found = _with_names(found, faults)
    if _are_documents(found, options):
        return _documents(found, faults, notes)
    pairs = PairData.of_tables(source, found, options.columns, faults)
    notes += faults.finish()
    return untitled(source, pairs.retrieval().corpus)


def split_names(source: str, options: SourceOptions) -> list[str] | None:
    """Check the columns, and return the splits that the names of files tell; see `Format.split_names`."""
    path = Path(source)
    if path.is_dir() and _is_saved(path):
        return None
    files = _files_by_split(path) if path.is_dir() else {TRAIN: path}
    for split, file in files.items():
        names = first_columns(file, _headers(options), options)
        if not names:
            return None
        find_roles(str(file), names, columns_of_split(split, options.columns))
        if file == path and (usual_column(SPLIT, names) or _has_split_below(file)):
            return None  # the rows name the splits
    return list(files)


def read_form(source: str) -> set[str]:
    """Return which of the options `delimiter` and `encoding` are read for the files of a source."""
    path = Path(source)
    if path.is_dir() and _is_saved(path):
        return set()
    files = _files_by_split(path).values() if path.is_dir() else [path]
    read = {"csv": {"delimiter", "encoding"}, "json": {"encoding"}, "parquet": set[str]()}
    return set[str]().union(*(read[READERS[ending(file)]] for file in files))


def _has_split_below(file: Path) -> bool:
    """Return whether JSON lines may name a split behind the first one, whose row leaves that column out."""
    if READERS[ending(file)] != "json":
        return False
    try:
        return any(f'"{SPLIT}"' in line for _, line in numbered_lines(file))
    except NotDecodable:
        return True  # the loader knows more encodings


def _refuse_texts_beside(path: Path) -> None:
    """Refuse a folder of rows that holds texts too, other than notes about it at its top."""
    if not path.is_dir():
        return
    texts = (name for name in names_below(path) if is_text(name))
    text = next((name for name in texts if "/" in name or not name.upper().startswith(_NOTES)), None)
    if text is None:
        return
    saved = [name for name in _SAVED if (path / name).is_file()]
    table = saved[0] if saved else next(iter(_files_by_split(path).values())).name
    raise DataError(
        f"{path} holds {table}, as a folder of rows does, and texts such as {text}: give the table itself, "
        "or a folder of one kind"
    )


def _with_names(found: Mapping[str, Table], faults: Faults) -> dict[str, Table]:
    """Name the columns of a file of ids and texts that has no header, and tell it.

    A file of two columns between tabs is one, as MS MARCO's `collection.tsv`, if each first cell is one word
    and stands there once. The columns of others are taken as in training.
    """
    named = dict(found)
    for split, table in found.items():
        two = table.headerless and len(found) == 1 and table.rows.num_columns == 2
        if two and _are_ids(TextColumn(table.rows, ANCHOR)):
            faults.note(f"{table.name} has no header: its columns were taken for ids and texts")
            columns = {ANCHOR: "id", POSITIVE: "text"}
            named[split] = replace(table, rows=table.rows.rename_columns(columns))
    return named


def _are_ids(cells: Iterable[str]) -> bool:
    """Return whether cells are words, each another one."""
    known = set[str]()
    for cell in cells:
        if cell in known or cell.split() != [cell]:
            return False
        known.add(cell)
    return True


def _are_documents(found: Mapping[str, Table], options: SourceOptions) -> bool:
    """Whether rows hold a document each, and no query: a column of texts, and none of queries.

    Raises:
        DataError: If rows have neither.
    """
    names = [name for table in found.values() for name in table.rows.column_names]
    if options.query_column in names or not {*ALIASES[ANCHOR]}.isdisjoint(map(usual_name, names)):
        return False
    if {*_TEXTS}.isdisjoint(map(usual_name, names)) and options.query_column is None:
        raise DataError(
            f"{next(iter(found.values())).place(0)}: expected a column of documents, named one of "
            f"{list(_TEXTS)} (with {list(_PARTS['id'])} and {list(_PARTS['title'])} beside it, if there are "
            f"ids and titles), or one of queries, named one of {list(ALIASES[ANCHOR])}; received the columns "
            f"{list(dict.fromkeys(names))}"
        )
    return options.query_column is None


def _documents(
    found: Mapping[str, Table], faults: Faults, notes: list[str]
) -> Iterator[tuple[object, str | int, str, str]]:
    """Yield where each row stands, its id (or its number, from 1), its title if it has one, and its text."""
    number, known = 0, set[str]()
    for table in found.values():
        names = {usual_name(name): name for name in reversed(table.rows.column_names)}
        usual = {part: [names[name] for name in _PARTS[part] if name in names] for part in _PARTS}
        columns = {part: there[0] for part, there in usual.items() if there}
        if unread := [name for name in table.rows.column_names if name not in columns.values()]:
            faults.note(f"{table.name}: columns that are not read: {counted(unread)}")
        for place, row in enumerate(table.rows.select_columns(list(columns.values()))):
            number += 1
            faults.rows += 1
            where = table.place(place)
            cells = {part: row[name] for part, name in columns.items() if not is_missing(row[name])}
            texts = {part: cells.get(part, "") for part in ("title", "text")}
            with faults.reading(where):
                key = _new_id(cells.get("id", "") if "id" in columns else number, known)
                require_texts(None, **texts)
                known.add(key)
                yield where, key if "id" in columns else number, texts["title"], texts["text"]
    notes += faults.finish()


def _new_id(cell: object, known: Collection[str]) -> str:
    """Return the id in a cell, which must not be one of those before it."""
    if isinstance(cell, (dict, list, bytes)):
        raise DataError(f"an id must be a text or a number; received {excerpt(cell)}")
    key = id_of(cell).strip()
    if isinstance(cell, float) and abs(cell) >= ROUNDED:
        raise BadRow("rounded ids", f"the id {key} may be rounded: write ids as texts", key)
    if not key:
        raise BadRow("blank ids", "the id is blank")
    if key in known:
        raise BadRow("repeated ids", f"the id {key!r} occurs a second time", key)
    return key


def is_missing(cell: object) -> bool:
    """Return whether a cell holds nothing; pandas writes NaN there, and a CSV file has a blank text."""
    return cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell))


def id_of(cell: object) -> str:
    """Return an id as text; pandas makes 3.0 of 3 where another id of the column is missing."""
    return str(int(cell) if isinstance(cell, float) and cell.is_integer() else cell)


def _headers(options: SourceOptions) -> tuple[str, ...]:
    """Return the words that make the first line of a .tsv file a header."""
    return (*HEADERS, *options.columns.values())


def _is_saved(folder: Path) -> bool:
    """Return whether `save_to_disk` wrote the folder."""
    return any((folder / name).is_file() for name in _SAVED)


def _files_by_split(folder: Path) -> dict[str, Path]:
    """Return the tables of a folder by the split that the name of each begins with."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        split = split_name(path.name.lower().split(".")[0].split("-")[0].split("_")[0])
        if path.is_file() and ending(path) in READERS and split in (TRAIN, DEV, TEST):
            if split in found:
                raise DataError(
                    f"{folder}: {found[split].name} and {path.name} are both the split {split!r}; "
                    f"hf:{folder} reads the files of a split together"
                )
            found[split] = path
    return found


def _refuse_other_split(split: str, table: Table) -> None:
    """Refuse a row of a file in a folder whose column `split` contradicts the name of the file."""
    column = usual_column(SPLIT, table.rows.column_names)
    for place, cell in enumerate(() if column is None else table.rows[column]):
        named = split_of_row(cell)
        if cell and named in {TRAIN, DEV, TEST} - {split}:
            raise DataError(
                f"{table.place(place)}: the row names the split {named!r}, and its file {split!r}; "
                "give the file itself, whose column then counts, or leave the column out"
            )


def _by_split_column(table: Table) -> dict[str, Table]:
    """Return the rows by the value of their column `split`; without it they are the split `train`."""
    column = usual_column(SPLIT, table.rows.column_names)
    if column is None:
        return {TRAIN: table}
    values = np.array([split_of_row(value) for value in table.rows[column]])
    others = replace(table, rows=table.rows.remove_columns(column))
    return {
        str(split): others.select(np.flatnonzero(values == split)) for split in dict.fromkeys(values.tolist())
    }
