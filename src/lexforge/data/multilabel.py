"""Texts with sets of labels: JSON lines are read into memory, and label names become multi-hot lists.

A line holds `id`, `text`, `labels` (a list of names, which may be empty) and `split`. Training rows have one
text column and one label column. sentence-transformers makes one tensor of the label column, so its lists
must have equal lengths: lists of L integers do, lists of names do not.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lexforge.common.command_line import refuse_unread
from lexforge.common.types import DataError
from lexforge.data.faults import BLANK, BadRow, Faults
from lexforge.data.formats import OF_ROWS, checked_format, detect_rows, docstrings, read_records
from lexforge.data.formats.docstrings import load_docstrings
from lexforge.data.formats.rows import id_of, is_missing
from lexforge.data.lines import counted, excerpt, require_texts, stripped
from lexforge.data.rows import digests
from lexforge.data.splits import TRAIN, missing_split, trained_texts, unread_splits, wanted_rows
from lexforge.data.tables import find_column
from lexforge.data.text_tables import ending, read_lines, usual_column, usual_name
from lexforge.settings import MultiLabelOptions, TableOptions

TEXT, LABEL = "text", "label"
TEXT_NAMES = (TEXT, "sentence")  # what a column of texts is called
_LABELS = "labels"
_FIELDS = ("id", "text", _LABELS, "split")
TOPICS = 30  # labels of the embedded set
_MARKS = "|;,"  # between names in a cell; the first that occurs counts, because names may hold the others
# What Python writes for a set or a tuple, NumPy for an array, and Label Studio for several choices.
_WRITTEN = re.compile(r"""[\[({]\s*['"]""")


@dataclass(frozen=True)
class LabelledText:
    """A text and the names of its labels, each once, in the order of the file."""

    id: str
    text: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class MultiLabelData:
    """Texts with label sets, by split.

    Args:
        name: What the set is called in logs and run directories.
        label_names: The names of the L labels; a name's position is its column.
        splits: Split -> its texts.
        notes: What was recognised, guessed and left out while the data were read, one line each.
    """

    name: str
    label_names: tuple[str, ...]
    splits: dict[str, list[LabelledText]]
    notes: tuple[str, ...] = ()

    def split(self, name: str) -> list[LabelledText]:
        """Return the texts of one split.

        Raises:
            ValueError: If there is no such split; the message names those that exist.
        """
        if name not in self.splits:
            raise missing_split(self.name, name, list(self.splits))
        return self.splits[name]

    def columns(self, split: str) -> dict[str, list[Any]]:
        """Return one text column and one label column, as `datasets.Dataset.from_dict` takes them."""
        rows = self.split(split)
        return {
            TEXT: [row.text for row in rows],
            LABEL: multi_hot((row.labels for row in rows), self.label_names),
        }

    def digests(self) -> dict[str, dict[str, Any]]:
        """Compute the digests of the label names and of the texts of each split with their labels."""
        splits = {name: ((row.text, row.labels) for row in rows) for name, rows in self.splits.items()}
        return digests({"label_names": self.label_names, **splits})

    def sample(self, texts: int, seed: int = 0) -> MultiLabelData:
        """Draw a smaller set at random.

        Args:
            texts: The largest number of texts of each split.
            seed: The seed of the draw.

        Returns:
            The smaller set; its texts keep their order.

        Raises:
            ValueError: If `texts` is below 1.
        """
        if texts < 1:
            raise ValueError(f"a sample holds at least 1 text of each split; received {texts}")
        splits = {}
        for name, rows in self.splits.items():
            drawn = random.Random(seed).sample(range(len(rows)), min(texts, len(rows)))
            splits[name] = [rows[place] for place in sorted(drawn)]
        return replace(self, splits=splits)


def multi_hot(label_sets: Iterable[Sequence[str]], label_names: Sequence[str]) -> list[list[int]]:
    """Turn lists of label names into rectangular lists of 0 and 1.

    Args:
        label_sets: The names of each text's labels; a text may have none.
        label_names: The names of the L known labels; a name's position is its column.

    Returns:
        `[N, L]` integers, 0 or 1, one list per text.

    Raises:
        DataError: If a label is unknown (the message names the row), if a name stands twice in
            `label_names`, or if a string stands in the place of a list of names.
    """
    columns = {name: column for column, name in enumerate(label_names)}
    if len(columns) != len(label_names):
        twice = [name for name, count in Counter(label_names).items() if count > 1]
        raise DataError(f"label names must be distinct; received several times: {twice}")
    rows = []
    for row, names in enumerate(label_sets):
        if isinstance(names, str):
            raise DataError(f"row {row}: expected a list of label names; received the text {names!r}")
        hot = [0] * len(columns)
        for name in names:
            if name not in columns:
                raise DataError(f"row {row}: unknown label {name!r}; {_known(label_names)}")
            hot[columns[name]] = 1
        rows.append(hot)
    return rows


def load_label_sets(
    source: str, splits: Sequence[str] | None = None, options: MultiLabelOptions | None = None
) -> MultiLabelData:
    """Load texts with label sets by the name that a command line takes.

    Args:
        source: `docstrings` (embedded), or rows of a format of `lexforge.data.formats.OF_ROWS`. A row has a
            text and its labels; it may also have `id`, and in a file `split`, which is `train` where it is
            missing. The labels are a list of names, one that JSON or Python wrote into a cell of text, names
            with `|`, `;` or `,` between them, or columns of 0 and 1 that are named after the labels.
        splits: The splits that the caller needs; None takes those that exist.
        options: Names of columns, and the share that is held out for a missing split.

    Returns:
        The set with these splits, named after the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If there is no such split.
        DataError: If the data are wrong; the message names file and line.
    """
    options = options or MultiLabelOptions()
    is_embedded = detect_rows(source, options) is docstrings
    loaded = load_docstring_topics() if is_embedded else _from_rows(source, options)
    if splits is None:
        return loaded
    rows = wanted_rows(source, loaded.splits, splits, options.hold_out, lambda row: row.text)
    sizes = {split: len(texts) for split, texts in loaded.splits.items()}
    unread = (f"{source}: {line}" for line in unread_splits(sizes, splits))
    texts = {split: [row.text for row in found] for split, found in rows.items()}
    repeated = trained_texts(source, texts.get(TRAIN, ()), texts, "texts")
    return replace(loaded, splits=rows, notes=(*loaded.notes, *unread, *repeated))


def load_texts(
    source: str, text_column: str | None = None, options: TableOptions | None = None
) -> list[tuple[str | None, str]]:
    """Load the texts that are to get labels.

    Args:
        source: A file `.txt`, plain or compressed, with one text per line, of which blank ones are left out
            and told; or rows of a format of `lexforge.data.formats.OF_ROWS` with a column of texts. Rows of
            all splits are taken.
        text_column: Name of that column; None recognises `text` and `sentence`.
        options: How tables are read; None refuses bad rows and finds delimiter and encoding.

    Returns:
        Id and text of each row, in their order; the id is None where a row has none.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a column or a delimiter is named for a .txt file; or as for `detect_rows`.
        DataError: If the data are wrong, a text of a row is blank, or there is no text; the message names
            file and line.
    """
    path, options = Path(source), options or TableOptions()
    faults = Faults(source, options.bad_rows)
    found: list[tuple[str | None, str]] = []
    if path.is_file() and ending(path) == ".txt":
        if text_column is not None:
            raise ValueError(
                f"a .txt file has no columns; received --text-column {text_column} with {source}"
            )
        refuse_unread(options, ["delimiter"], "a .txt file has one text per line")
        for number, text in read_lines(path, options, faults):
            if text:
                found.append((None, text))
            else:
                faults.told("blank lines, which are left out", f"{source}:{number}")
    else:
        try:
            checked_format(source, options, OF_ROWS)
        except (FileNotFoundError, DataError) as error:
            error.add_note("a .txt file with one text per line is taken too")
            raise
        column = ""
        for where, _, record in read_records(source, _headers(text_column), options, faults):
            # The first row says which column holds the texts; a later row without it is a bad one.
            column = column or find_column(
                where, list(record), "text", TEXT_NAMES, text_column, "--text-column"
            )
            with faults.reading(where):
                cell: Any = record.get(column)
                key = _id_of(record)
                require_texts(None, **{column: cell})
                if not stripped(cell):
                    raise BadRow(BLANK, f"the text in {column!r} is blank")
                found.append((None if key is None else str(key), cell.strip()))
    faults.log()
    if not found:
        raise DataError(f"{source} holds no text")
    return found


def _headers(*given: str | None) -> tuple[str, ...]:
    """Return the words that make the first line of a .tsv file a header."""
    return (*_FIELDS, *TEXT_NAMES, *(name for name in given if name is not None))


def _id_of(record: Mapping[str, Any]) -> Any:
    """Return the id that a row holds, a number as a text; None where it has none."""
    column = usual_column("id", record)
    key = None if column is None else record[column]
    if is_missing(key):
        return None
    return id_of(key) if isinstance(key, (int, float)) else key


def _label_reader(
    where: object, records: Sequence[Mapping[str, Any]], text: str, options: MultiLabelOptions
) -> tuple[Callable[[Mapping[str, Any]], Any], str]:
    """Find out how rows hold their labels.

    Args:
        where: Where the first row stands, for messages.
        records: The rows, at least one.
        text: The column of the texts.
        options: The column of the labels, if the user names it.

    Returns:
        A function from a row to its labels, which refuses cells of another form; and the form in words, ""
        for lists.
    """
    names = list(dict.fromkeys(name for record in records for name in record))
    if options.labels_column is None and usual_column(_LABELS, names) is None:
        others = [name for name in names if name != text and usual_name(name) not in _FIELDS]
        wide = [name for name in others if _mostly_bits(name, records[:100])]
        if wide:
            unread = [name for name in others if name not in wide]
            form = f"its columns with a 1 ({counted(wide)})"
            return partial(_wide_labels, wide), form + (f"; not read: {counted(unread)}" if unread else "")
    column = find_column(where, names, "labels", (_LABELS,), options.labels_column, "--labels-column")
    found = [record.get(column) for record in records]
    cells = [cell for cell in found if isinstance(cell, str) and cell.strip()]
    if any(isinstance(cell, list) for cell in found) or not any(isinstance(cell, str) for cell in found):
        return lambda record: record.get(column), ""
    if not cells:  # a blank cell is one without labels, also where no row has any
        return partial(_joined_labels, column, ""), ""
    if cells[0].lstrip().startswith("["):
        return partial(_listed_labels, column), f"the list in the column {column!r}"
    mark = next((mark for mark in _MARKS if any(mark in cell for cell in cells)), "")
    between = f" with {mark!r} between them" if mark else ""
    return partial(_joined_labels, column, mark), f"the names in the column {column!r}{between}"


def _mostly_bits(name: str, records: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether more than half of the cells of a column are 0 or 1; the others are then mistakes."""
    return 2 * sum(_bit(record.get(name)) is not None for record in records) > len(records)


def _bit(cell: Any) -> bool | None:
    """Return what a cell of 0 or 1 says, as a number or as a text; None for another cell."""
    text = str(cell).strip().lower()  # a spreadsheet writes TRUE
    return {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}.get(text)


def _wide_labels(columns: Sequence[str], record: Mapping[str, Any]) -> list[str]:
    wrong = [name for name in columns if _bit(record.get(name)) is None]
    if wrong:
        cell = record.get(wrong[0])
        blank = " (a blank cell does not count as 0)" if cell is None or not str(cell).strip() else ""
        raise DataError(f"{wrong[0]!r} must hold 0 or 1{blank}; received {excerpt(cell)}")
    return [name for name in columns if _bit(record[name])]


def _listed_labels(column: str, record: Mapping[str, Any]) -> Any:
    """Return the labels of a cell with a list, as JSON or Python writes it: pandas writes `['a', 'b']`."""
    cell = record.get(column)
    if not isinstance(cell, str):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        pass
    try:
        found = ast.literal_eval(cell.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        found = None
    # NumPy writes `['a' 'b']`, which Python reads as the one name `ab`; it writes that name in another way.
    if repr(found).replace(" ", "") != cell.replace(" ", ""):
        raise DataError(
            f"{column!r} must hold a JSON list of names, or one as Python writes it; received {excerpt(cell)}"
        )
    return found


def _joined_labels(column: str, mark: str, record: Mapping[str, Any]) -> Any:
    cell = record.get(column)
    if not isinstance(cell, str):
        return cell
    if _WRITTEN.search(cell):
        raise DataError(
            f"{column!r} must hold names with a mark between them, such as a|b, or in each row a list, "
            f'such as ["a", "b"]; received {excerpt(cell)}'
        )
    parts = cell.split(mark) if mark else [cell]
    return [part.strip() for part in parts if part.strip()]


def _from_rows(source: str, options: MultiLabelOptions) -> MultiLabelData:
    """Read the rows of tables, check them, and gather them by split."""
    faults = Faults(source, options.bad_rows)
    headers = _headers(options.text_column, options.labels_column)
    rows = list(read_records(source, headers, options, faults))
    if rows:
        where, _, first = rows[0]
        column = find_column(where, list(first), "text", TEXT_NAMES, options.text_column, "--text-column")
        read_labels, form = _label_reader(where, [record for _, _, record in rows], column, options)
        if form:
            faults.note(f"{source}: the labels of a text are {form}")
    counts: Counter[str] = Counter()
    splits: dict[str, list[LabelledText]] = {}
    ids: set[str] = set()
    texts: set[str] = set()
    for where, split, record in rows:
        key = _id_of(record)
        key = f"{split}-{counts[split]}" if key is None else key
        counts[split] += 1
        with faults.reading(where):
            labels = read_labels(record)
            require_texts(None, id=key, text=record.get(column))
            labels, text = _checked_labels(labels), stripped(record[column])
            if key in ids:
                raise BadRow("repeated ids", f"the id {key!r} occurs a second time", key)
            if not text:
                raise BadRow(BLANK, f"{key!r} has no text")
            if text in texts:
                faults.told("repeated texts, each with the labels of its own row", where)
            texts.add(text)
            ids.add(key)
            splits.setdefault(split, []).append(LabelledText(key, text, labels))
    notes = tuple(faults.finish())
    found = {label for rows in splits.values() for row in rows for label in row.labels}
    if not found:
        raise DataError("\n".join([f"{source} holds no text with a label", *notes]))
    return MultiLabelData(Path(source).name.split(".")[0], tuple(sorted(found)), splits, notes)


def load_docstring_topics() -> MultiLabelData:
    """Load the embedded set: docstrings of the installed packages, labelled with the place of their objects.

    The labels of a docstring are the packages, modules and classes in its object's dotted name, such as
    `scipy`, `stats` and `rv_continuous`. Only the `TOPICS` labels that are most frequent in the training
    split are kept, and texts without any of them are left out. The splits are those of `load_docstrings`, in
    which all docstrings of a file belong to one split.

    Returns:
        The set `docstring-topics`.
    """
    data = load_docstrings()
    splits = {}
    for split in data.splits:
        texts = []
        for query_id, documents in data.split(split).items():
            document_id = next(iter(documents))
            homes = tuple(dict.fromkeys(part.strip("_") for part in document_id.split(".")[:-1]))
            text = f"{data.queries[query_id]} {data.corpus[document_id]}"
            texts.append(LabelledText(document_id, text, homes))
        splits[split] = texts
    # The most frequent labels of the training split; equal counts are ordered by name.
    counts = Counter(name for row in splits["train"] for name in row.labels)
    label_names = tuple(sorted(sorted(counts, key=lambda name: (-counts[name], name))[:TOPICS]))
    kept = set(label_names)
    labelled = {
        split: [
            LabelledText(row.id, row.text, labels)
            for row in rows
            if (labels := tuple(name for name in row.labels if name in kept))
        ]
        for split, rows in splits.items()
    }
    return MultiLabelData("docstring-topics", label_names, labelled)


def _checked_labels(labels: object) -> tuple[str, ...]:
    """Return the label names of one row without white space at their ends, each once."""
    if not isinstance(labels, list) or not all(isinstance(name, str) and stripped(name) for name in labels):
        raise DataError(f"'labels' must be a list of names; received {excerpt(labels)}")
    for name in labels:
        require_texts(None, labels=name)
    # For example, Reuters-21578 names "corn" twice in one story.
    return tuple(dict.fromkeys(name.strip() for name in labels))


def _known(label_names: Sequence[str]) -> str:
    """Return the known labels for an error message."""
    shown = ", ".join(map(repr, label_names[:10]))
    more = f" and {len(label_names) - 10} more" if len(label_names) > 10 else ""
    return f"the {len(label_names)} known labels are {shown}{more}"
