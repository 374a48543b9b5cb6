"""The formats of data, one module each, and the one place that decides which of them a source has.

A format is a module with the functions of `Format`. To add one, write its module and name it in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Protocol

from lexforge.common.command_line import refuse_unread
from lexforge.common.types import DataError
from lexforge.data.faults import Faults
from lexforge.data.formats import beir, docstrings, hub, msmarco, rows, texts
from lexforge.data.lines import excerpt
from lexforge.data.pair_data import PairData
from lexforge.data.retrieval_data import RetrievalData
from lexforge.data.splits import split_of_row
from lexforge.data.tables import Table, class_lists, class_names
from lexforge.data.text_tables import SPLIT, usual_column
from lexforge.settings import SourceOptions, TableOptions


class Format(Protocol):
    """What the module of a format provides; `NAME` says in messages what the format looks like."""

    NAME: str

    def matches(self, source: str) -> bool:
        """Return whether a source has this format, by its name and the files that there are."""

    def split_names(self, source: str, options: SourceOptions) -> list[str] | None:
        """Return the splits that the names of files tell; None where the data must be read.

        It loads neither torch nor `datasets`, and may refuse what the beginnings of files tell.
        """

    def open(
        self, source: str, options: SourceOptions, splits: Sequence[str] | None, faults: Faults
    ) -> RetrievalData | PairData:
        """Open a source, and check it.

        Args:
            source: What `matches` accepts.
            options: Names of columns.
            splits: The splits that are needed; a format with a file for each may leave others unread. None
                needs all.
            faults: Counts what is wrong in rows and judgements. The caller finishes it.

        Returns:
            Documents and judgements by id, or rows of texts.
        """

    def titled(
        self, source: str, options: SourceOptions, notes: list[str]
    ) -> Iterator[tuple[object, str | int, str, str]]:
        """Yield the documents; queries and judgements in files of their own need not exist.

        Args:
            source: What `matches` accepts.
            options: Names of columns.
            notes: What was left out or guessed is added here, one line each, once all has been read.

        Yields:
            Where the document stands, for error messages; its id, which the caller checks, or its number if
            it has none; its title, which is blank where the format has none; its text.
        """


# The first that matches counts: a folder of MS MARCO's files may also hold files that look like rows, and any
# folder may hold a README.md.
FORMATS: tuple[Format, ...] = (docstrings, hub, msmarco, rows, beir, texts)
OF_ROWS: tuple[Format, ...] = (rows, hub)  # those that labelled texts and scored pairs can have
# The options that say how a file is cut and decoded, each with the files whose readers take it.
TEXT_FORM = {
    "delimiter": "rows in .csv and .tsv files",
    "encoding": "rows in .csv, .tsv and .jsonl files, and documents in .txt, .md, .rst and .html files",
}


def detect(source: str, allowed: Collection[Format] = FORMATS) -> Format:
    """Return the format of a source.

    Args:
        source: The name that a command line takes.
        allowed: The formats that the caller reads.

    Returns:
        The module of the format.

    Raises:
        FileNotFoundError: If there is no such file or folder; the message lists the formats.
        DataError: If the source has none of the allowed formats; so does this message.
    """
    if not source.strip():  # what a shell makes of a variable that is not set; a path takes it for "."
        raise FileNotFoundError(f"expected the name of a file or folder; received {source!r}")
    found = next((known for known in FORMATS if known.matches(source)), None)
    if found is not None and found in allowed:
        return found
    expected = "; ".join(known.NAME for known in FORMATS if known in allowed)
    if found is None and not Path(source).exists():
        raise FileNotFoundError(f"there is no file or folder {source}; expected {expected}")
    received = f"is {found.NAME}" if found else "is in no known format"
    if found is None and Path(source).is_dir() and not texts.names_below(Path(source)):
        received = "holds no file"
    raise DataError(f"{source} {received}; expected {expected}")


def checked_format(source: str, options: TableOptions, allowed: Collection[Format] = FORMATS) -> Format:
    """Return the format of a source, and refuse the options that nothing reads in it.

    Args:
        source: The name that a command line takes.
        options: The form of text files and the names of columns, where the user gives them.
        allowed: The formats that the caller reads.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        DataError: If the source has none of the allowed formats.
        ValueError: If a column is named, and the source is none of rows, or if nothing in it is read by the
            delimiter or the encoding.
    """
    found = detect(source, allowed)
    read = _read_form(source, found)
    for name, files in TEXT_FORM.items():
        if name not in read:
            refuse_unread(options, [name], f"it is for {files}, and nothing of {source} is read by it")
    if found not in OF_ROWS:
        columns = [name for name in _columns(options) if name != "weight_column"]  # its reader refuses it
        refuse_unread(options, columns, f"rows of texts have columns, and {source} is {found.NAME}")
    return found


def _columns(options: TableOptions) -> list[str]:
    """Return the options that name a column."""
    return [field.name for field in fields(options) if field.name.endswith("_column")]


def options_of(
    source: str, options: SourceOptions, documents: str, judged: str | None, *, lines: bool = False
) -> SourceOptions:
    """Return the options of one of two sources, where the options of a command are those of both.

    A delimiter or an encoding that only the other source reads is left out. What neither reads stays, and
    is refused where the source is read. The columns that are named are those of judged data, if these are
    another source than the documents.

    Args:
        source: One of the two.
        options: The options of the command.
        documents: The documents, by the name that a command line takes.
        judged: The judged data; None if there are none.
        lines: Whether the command also reads a file with a text per line, which has an encoding.
    """
    read = {name: _read_form(name, detect(name)) for name in (documents, judged) if name is not None}
    elsewhere = set[str]().union({"encoding"} if lines else (), *read.values()) - read[source]
    columns = _columns(options) if judged is not None and source != judged else ()
    unread: dict[str, Any] = dict.fromkeys([*elsewhere, *columns])
    return replace(options, **unread)


def _read_form(source: str, found: Format) -> set[str]:
    """Return the options of `TEXT_FORM` that are read in a source."""
    if found is texts:
        return {"encoding"}
    return rows.read_form(source) if found is rows else set()


def detect_rows(source: str, options: TableOptions) -> Format:
    """Return the format of labelled texts or scored pairs: rows, or the embedded docstrings.

    Args:
        source: The name that a command line takes.
        options: The form of text files and the names of columns, where the user gives them.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        DataError: If the source has another format.
        ValueError: As `checked_format`.
    """
    return checked_format(source, options, (*OF_ROWS, docstrings))


def read_records(
    source: str, headers: Sequence[str], options: TableOptions, faults: Faults
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Read the rows of tables one by one, such as labelled texts and scored pairs.

    Args:
        source: What a format of `OF_ROWS` has.
        headers: Column names that count as a header in a .tsv file.
        options: The delimiter and the encoding of text files, where the user names them.
        faults: Counts the rows, and those lines that cannot be read, which are left out.

    Yields:
        Where the row stands, such as `file:line`, its split, and its cells by column. A row without a split
        is one of train; a cell of a CSV file is a text; a list of `ClassLabel` is one of names. Each row has
        all columns of its file, and the rows of a file keep their order.

    Raises:
        DataError: If the source cannot be read.
    """
    tables: Iterable[tuple[str | None, Table]] = (
        hub.tables(source).items()
        if hub.matches(source)
        else rows.undivided(source, headers, options, faults)
    )
    for split, table in tables:
        # No line of the file has those names.
        if table.headerless and {*table.rows.column_names}.isdisjoint(headers):
            raise DataError(
                f"{table.name}:1: expected the names of the columns, such as "
                f"{list(dict.fromkeys(headers))}, or others that an option names; received "
                f"{excerpt(list(table.rows[0].values()))}"
            )
        classes = class_lists(table.rows.features)
        column = usual_column(SPLIT, table.rows.column_names) if split is None else None
        for row, record in enumerate(table.rows):
            faults.rows += 1
            named = split or split_of_row(record.pop(column) if column else None)
            with faults.reading(place := table.place(row)):
                yield place, named, record | class_names(record, classes)
