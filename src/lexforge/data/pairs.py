"""Rows of a query, a text that answers it, negatives and scores, whatever their columns are called.

`pair_rows` turns a table into rows under the column contract (`lexforge.data.columns`) without reading it
into memory: the rows are written to an Arrow file once, and mapped.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lexforge import __version__
from lexforge.common.text_identity import text_identity
from lexforge.common.types import NEGATIVE_COLUMN, POSITIVE_COLUMNS, QUERY_COLUMNS, DataError, joined
from lexforge.data.columns import ANCHOR, LABEL, POSITIVE, RELEVANT
from lexforge.data.faults import BLANK, WRONG, BadRow, Faults
from lexforge.data.lines import as_number, excerpt, require_texts, stripped
from lexforge.data.splits import TRAIN
from lexforge.data.tables import Table, TextColumn, find_column
from lexforge.data.text_tables import usual_column, usual_columns, usual_name
from lexforge.storage.files import cache_folder

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

NEGATIVE, SCORES, WEIGHT = "negative", "scores", "weight"
# The usual names of the columns; a name that the user gives replaces them.
ALIASES: dict[str, tuple[str, ...]] = {
    ANCHOR: QUERY_COLUMNS,
    POSITIVE: POSITIVE_COLUMNS,
    SCORES: ("label", "labels", "score", "scores", "margin"),
}
_FLAGS = {
    ANCHOR: "--query-column",
    POSITIVE: "--positive-column",
    NEGATIVE: "--negative-column",
    SCORES: "--score-column",
    WEIGHT: "--weight-column",
}
SOURCE_ROW = "source_row"
"""The column with the row of the table that each training row was made of."""
_FAULT, _IDENTITY = "fault", "identity"  # what is wrong with a converted row, and the identity of its texts
IDENTICAL = "query and text identical"
WRONG_WEIGHTS = "wrong weights, never drawn"
_FAULTS = (BLANK, IDENTICAL, WRONG, WRONG_WEIGHTS)
_ONLY_WEIGHT = 1 + _FAULTS.index(WRONG_WEIGHTS)  # the mark of a row of which nothing else is wrong
_SPLIT_SCORES = ("pos_scores", "neg_scores")  # FlagEmbedding's, of the positives and of the negatives
_NO_SCORES = "--score-column '' reads none, score_column=\"\" in Python"
# Spreadsheets of many countries write 1200 so; another cell of the column may have a decimal point.
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}\.[0-9]{3}")
HEADERS = (*ALIASES[ANCHOR], *ALIASES[POSITIVE], "negative", "neg", *ALIASES[SCORES])
_JUDGEMENTS = (
    "judgements of ids make a folder in BEIR layout (corpus.jsonl, queries.jsonl and qrels/<split>.tsv)"
)
_IDS = re.compile(r"(?!q)(.+_id|.*docid|.*pid)s?")  # what ids of documents are called, not those of queries
_ID = re.compile(r"[!-~]*[0-9][!-~]*")


@dataclass(frozen=True)
class Roles:
    """Which columns of a table play which role.

    Args:
        anchor: The column of the queries.
        positive: The column of the positives, texts or lists of texts.
        negatives: The columns of the negatives, texts or one list of texts, in their order.
        scores: The column of the scores: a list for each positive and then each negative, or one margin. Two
            columns hold the lists of the positives and of the negatives.
        weight: The column of the weights.
    """

    anchor: str
    positive: str
    negatives: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    weight: str | None = None


def find_roles(where: str, names: Sequence[str], columns: Mapping[str, str]) -> Roles:
    """Recognise the columns of a table.

    Args:
        where: The source, for error messages.
        names: The columns of the table.
        columns: Role (`anchor`, `positive`, `negative`, `scores` or `weight`) -> the name of its column, for
            roles whose column has none of the usual names. No name of a weight is usual. An empty name of the
            scores reads none, whatever the columns are called.

    Returns:
        The columns by their role.

    Raises:
        DataError: If a query or positive column is missing, or if several could be meant.
    """
    try:
        anchor = _one(where, names, ANCHOR, columns)
    except DataError as error:
        if ANCHOR not in columns and not usual_columns(ALIASES[ANCHOR], names):
            alone = "`lexforge adapt --documents FILE` trains on documents alone"
            judged = not {"query_id", "qid"}.isdisjoint(map(usual_name, names))
            error.add_note(_JUDGEMENTS if judged else f"rows of documents have no query: {alone}")
        raise
    try:
        positive = _one(where, names, POSITIVE, columns)
    except DataError as error:
        ids = [name for name in names if _IDS.fullmatch(usual_name(name))]
        if POSITIVE not in columns and ids:
            error.add_note(
                f"rows that name documents by ids ({ids[0]}) need their texts in the place of these; "
                f"{_JUDGEMENTS}"
            )
        raise
    weight = _one(where, names, WEIGHT, columns) if WEIGHT in columns else None
    negatives = tuple(name for name in names if NEGATIVE_COLUMN.fullmatch(usual_name(name)))
    if NEGATIVE in columns:
        negatives = (_one(where, names, NEGATIVE, columns),)
    return Roles(anchor, positive, negatives, _score_columns(where, names, columns), weight)


def _score_columns(where: str, names: Sequence[str], columns: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns of the scores; see `Roles.scores`."""
    if columns.get(SCORES) == "":
        return ()
    if SCORES in columns:
        return (_one(where, names, SCORES, columns),)
    split = [column for name in _SPLIT_SCORES if (column := usual_column(name, names))]
    found = usual_columns(ALIASES[SCORES], names)
    if len(split) < 2 and len(found) > 1:
        raise DataError(
            f"{where}: several columns may hold the scores: {found}; name it by --score-column ({_NO_SCORES})"
        )
    return tuple(split if len(split) == 2 else found)


def _one(where: str, names: Sequence[str], role: str, columns: Mapping[str, str]) -> str:
    """Return the one column that plays a role."""
    flag = _FLAGS[role]
    usual = ALIASES.get(role, ())
    return find_column(where, names, role, usual, columns.get(role), f"{flag} (columns= in Python)")


def columns_of_split(split: str, columns: Mapping[str, str]) -> dict[str, str]:
    """Return the names of columns, by their role, that are read in a split: weights in train alone."""
    return {role: name for role, name in columns.items() if role != WEIGHT or split == TRAIN}


def pair_rows(table: Table, columns: Mapping[str, str], faults: Faults) -> Dataset:
    """Turn a table into rows under the column contract; memory holds a thousand rows at a time.

    A row with a list of positives becomes one row for each of them. Of lists of negatives each row keeps as
    many as the shortest list of the table has. A margin m of one negative becomes the scores [m, 0], which
    have the same differences.

    Args:
        table: The table.
        columns: Names of columns by their role, as for `find_roles`.
        faults: Takes a note of a file without a header, and counts the rows that cannot be used: a text is
            missing, blank, no text or the same as its query, negatives are missing that other rows have, or
            scores do not fit the texts. They are left out. So are rows that repeat the texts of an earlier
            one, which are told and not bad. A row with a wrong weight is counted, and stays with the weight
            0: it is no reason to search fewer documents, or to measure fewer queries, than a command that
            reads no weights.

    Returns:
        Rows with `anchor`, `positive`, `negative_1` .. `negative_n`, `label` if the table has scores,
        `weight` if it has weights, and `SOURCE_ROW`, the row of the table that each was. A repeated row that
        is left out adds its weight to that of the first.

    Raises:
        DataError: If columns are missing or could be several, if a column that is called as scores are holds
            something else, or if no row is left.
    """
    import datasets
    from datasets.fingerprint import update_fingerprint

    rows, origin = table
    where = origin.name
    roles = find_roles(where, rows.column_names, columns)
    if origin.headerless:
        taken = "queries, answers and negatives" if roles.negatives else "queries and answers"
        faults.note(f"{where} has no header: its columns were taken for {taken}")
        _refuse_ids(where, rows, roles)
    width = _negatives_per_row(where, rows, roles)
    _refuse_other_labels(where, rows, roles, width, named=SCORES in columns)
    _note_thousands(table, roles, faults)
    negatives = (f"negative_{rank}" for rank in range(1, width + 1))
    features = {name: datasets.Value("string") for name in (ANCHOR, POSITIVE, *negatives)}
    if roles.scores:
        features[LABEL] = datasets.Sequence(datasets.Value("float64"))
    if roles.weight is not None:
        features[WEIGHT] = datasets.Value("float64")
    features |= {name: datasets.Value("int64") for name in (_FAULT, _IDENTITY, SOURCE_ROW)}

    def convert(batch: dict[str, list[Any]], places: list[int]) -> dict[str, list[Any]]:
        made: dict[str, list[Any]] = {name: [] for name in features}
        for offset, place in enumerate(places):
            record = {name: cells[offset] for name, cells in batch.items()}
            for row in _rows_or_fault(record, roles, width, scored=LABEL in features):
                for name, cell in zip(features, [*row, place], strict=True):
                    made[name].append(cell)
        return made

    # Without the version, `datasets` would take rows that an earlier one made by other rules.
    fingerprint = update_fingerprint(rows._fingerprint, convert, {"version": __version__})
    made = rows.map(
        convert,
        batched=True,
        with_indices=True,
        remove_columns=rows.column_names,
        features=datasets.Features(features),
        desc=f"rows of {where}",
        new_fingerprint=fingerprint,
        cache_file_name=_cache_file(rows, fingerprint),
    )
    kept, identities = _kept(made, table, roles, width, faults)
    if len(kept) < len(made):
        if roles.weight is not None:
            sums = _summed(made, identities, kept)
            made = made.remove_columns(WEIGHT).select(kept).add_column(WEIGHT, sums)
        else:
            made = made.select(kept)
    return made.remove_columns([_FAULT, _IDENTITY])


def _cache_file(rows: Dataset, fingerprint: str) -> str | None:
    """Return the place for the converted rows of a folder of `save_to_disk`; None leaves it to `datasets`.

    `datasets` would write them into that folder, which is the user's and may be read-only.
    """
    files = rows.cache_files
    if not files or not (Path(files[0]["filename"]).parent / "state.json").is_file():
        return None
    return str(cache_folder("tables") / f"{fingerprint}.arrow")


def _summed(made: Dataset, identities: NDArray[np.int64], kept: NDArray[np.int64]) -> list[float]:
    """Return the weight of each row that stays, with those of the rows that repeat it."""
    weights = made.data.column(WEIGHT).to_numpy()
    unique, group = np.unique(identities, return_inverse=True)
    sums = np.bincount(group, weights, minlength=len(unique))
    return [float(weight) for weight in sums[group[kept]]]


def _kept(
    made: Dataset, table: Table, roles: Roles, width: int, faults: Faults
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the faults that `convert` has marked; return the places of rows that stay, and all identities.

    The marks are columns of the converted rows, so that they are known also where `datasets` finds these in
    its cache.
    """
    rows, origin = table
    columns = (_FAULT, _IDENTITY, SOURCE_ROW)
    marks, identities, places = (made.data.column(name).to_numpy() for name in columns)
    faults.rows += len(rows)
    for at in np.flatnonzero(marks):
        fault, place = _FAULTS[marks[at] - 1], int(places[at])
        message = _message(rows[place], roles, width) if faults.shows_next(fault) else ""
        faults.bad(fault, origin.place(place), message)
    good = np.flatnonzero((marks == 0) | (marks == _ONLY_WEIGHT))
    if not len(good):
        faults.refuse_nothing_left()
    _, first = np.unique(identities[good], return_index=True)
    is_first = np.zeros(len(good), dtype=bool)
    is_first[first] = True
    for at in good[~is_first]:
        faults.told("repeated rows, which count once", origin.place(int(places[at])))
    return good[is_first], identities


def _negatives_per_row(where: str, rows: Dataset, roles: Roles) -> int:
    """Return how many negatives every row of a table has; rows with an empty list are not counted."""
    if not roles.negatives:
        return 0
    lists = [name for name in roles.negatives if hasattr(rows.features[name], "feature")]
    if not lists:
        return len(roles.negatives)
    if len(roles.negatives) > 1:
        raise DataError(
            f"{where}: a list of negatives must be the only negative column; received "
            f"{list(roles.negatives)}. Name it by {_FLAGS[NEGATIVE]} (columns= in Python)"
        )
    import pyarrow.compute

    column = rows.select_columns(lists).with_format("arrow")
    shortest, longest = 2**31, 0
    for batch in column.iter(10_000):
        lengths = pyarrow.compute.fill_null(pyarrow.compute.list_value_length(batch[lists[0]]), 0)
        filled = pyarrow.compute.filter(lengths, pyarrow.compute.greater(lengths, 0))
        if len(filled):
            limits = pyarrow.compute.min_max(filled).as_py()
            shortest, longest = min(shortest, limits["min"]), max(longest, limits["max"])
    if not longest:
        return 0
    if shortest < longest:
        logger.info(
            "%s: each row keeps its first %d negatives; the lists hold up to %d", where, shortest, longest
        )
    return shortest


def _refuse_other_labels(where: str, rows: Dataset, roles: Roles, width: int, *, named: bool) -> None:
    """Refuse a column of single values for rows that need a list of scores: it may hold something else.

    Raises:
        DataError: If none of the first hundred rows holds a list, or if no row has a negative: a list may
            then say which of its texts are no answers.
    """
    if len(roles.scores) != 1 or width == 1:
        return
    [name] = roles.scores
    found = [cell for cell in rows[:100][name] if cell is not None and str(cell).strip()]
    listed = any(isinstance(cell, list) or str(cell).lstrip().startswith("[") for cell in found)
    if not found or (listed and width):
        return
    taken = "was named as" if named else "was taken, because of its name, for"
    need = "need a list, the positive's score first" if width else "have nothing to compare it with"
    raise DataError(
        f"{where}: the column {name!r} {taken} a teacher's scores. One number is the margin over one "
        f"negative; rows with {width} negatives {need}; "
        f"received {excerpt(found[0])}. Rename a column that holds something else, or leave it unread "
        f"({_NO_SCORES}): each positive then counts as an answer"
    )


def _refuse_ids(where: str, rows: Dataset, roles: Roles) -> None:
    """Refuse a file without a header whose first hundred queries or answers are ids, as in LoTTE's files."""
    for name in (roles.anchor, roles.positive):
        cells = rows[:100][name]
        if all(_ID.fullmatch(cell.strip()) for cell in cells):
            raise DataError(
                f"{where} has no header, and a column of ids, such as {excerpt(cells[0])}: expected queries, "
                f"answers and negatives; {_JUDGEMENTS}"
            )


def _note_thousands(table: Table, roles: Roles, faults: Faults) -> None:
    """Take a note if nothing but weights such as 1.200 tells what a point stands for."""
    if roles.weight is None or "string" not in str(table.rows.features[roles.weight]):
        return  # a column of numbers needs no look at each of them
    first = ""
    for place, cell in enumerate(map(str, TextColumn(table.rows, roles.weight))):
        if not _THOUSANDS.fullmatch(cell.strip()):
            if "." in cell and as_number(cell) is not None:
                return
        elif not first:
            first = f"{table.origin.place(place)}: {cell.strip()}"
    if first:
        faults.note(f"{first} in {roles.weight!r} is read with a decimal point; write thousands without it")


def _rows_or_fault(record: Mapping[str, Any], roles: Roles, width: int, *, scored: bool) -> list[list[Any]]:
    """Make the rows of a record with 0 and their identity, or one row without texts and with its fault.

    A fault of the weight alone marks the first row of the record, so that it is counted once.
    """
    try:
        made = _rows_of(record, roles, width)
    except DataError as error:
        fault = error.fault if isinstance(error, BadRow) else WRONG
        empty: list[Any] = [""] * (2 + width) + [[]] * scored + [0.0] * (roles.weight is not None)
        return [[*empty, 1 + _FAULTS.index(fault), 0]]
    try:
        weight, mark = _weight_of(record, roles), 0
    except DataError:
        weight, mark = [0.0], _ONLY_WEIGHT
    identities = [text_identity("\0".join(row[: 2 + width])) for row in made]
    marks = [mark, *[0] * (len(made) - 1)]
    return [[*row, *weight, *both] for row, *both in zip(made, marks, identities, strict=True)]


def _positives(record: Mapping[str, Any], roles: Roles) -> list[Any]:
    found = record[roles.positive]
    return [_text_of(each) for each in found] if isinstance(found, list) else [_text_of(found)]


def _text_of(cell: Any) -> Any:
    """Return title and text of a passage in fields, as Tevatron and DPR write it; other cells as they are."""
    if isinstance(cell, dict) and isinstance(cell.get("text"), str):
        return joined(cell.get("title") or "", cell["text"])
    return cell


def _negatives(record: Mapping[str, Any], roles: Roles) -> list[tuple[str, Any]]:
    """Return the column and the cell of each negative; null in the only column is none."""
    cells = [(name, _text_of(record[name])) for name in roles.negatives]
    if len(cells) != 1:
        return cells
    [(name, only)] = cells
    return [
        (name, _text_of(text)) for text in (only if isinstance(only, list) else [only]) if only is not None
    ]


def _message(record: Mapping[str, Any], roles: Roles, width: int) -> str:
    """Return why `_rows_of` or `_weight_of` refuses a record."""
    try:
        _rows_of(record, roles, width)
        _weight_of(record, roles)
    except DataError as error:
        return str(error)
    raise AssertionError("the record is good")


def _rows_of(record: Mapping[str, Any], roles: Roles, width: int) -> list[list[Any]]:
    """Make the rows of one record: the cells of `anchor`, `positive`, the negatives and `label`."""
    anchor, positives = record[roles.anchor], _positives(record, roles)
    own_negatives = _negatives(record, roles)
    negatives = [text for _, text in own_negatives[:width]]
    named = [(roles.anchor, anchor), *((roles.positive, text) for text in positives or [""])]
    for name, text in (*named, *own_negatives[:width]):
        if text is None or (isinstance(text, str) and not stripped(text)):
            raise BadRow(BLANK, f"the {name} is {'missing' if text is None else 'blank'}")
        require_texts(None, **{name: text})
    if len(negatives) < width:
        raise BadRow(BLANK, f"the {roles.negatives[0]} is empty, and other rows hold texts there")
    if any(anchor.split() == positive.split() for positive in positives):
        same = f"the {roles.anchor} and the {roles.positive} are the same text"
        raise BadRow(IDENTICAL, f"{same}; received {excerpt(anchor)}")
    listed = isinstance(record[roles.negatives[0]], list) if roles.negatives else False
    made = []
    for place, positive in enumerate(positives):
        row = [anchor.strip(), positive.strip(), *(negative.strip() for negative in negatives)]
        if len(roles.scores) == 2:
            texts = zip(roles.scores, (positives, own_negatives), strict=True)
            own, given = (_list_of_scores(name, record[name], len(scored)) for name, scored in texts)
            row.append(_numbers([own[place], *given[:width]], width))
        elif roles.scores:
            # Of several columns of negatives the user may have named one, and the list may score them all.
            numbers = [len(positives), len(own_negatives)] if listed or len(positives) > 1 else []
            row.append(_scores(roles.scores[0], record[roles.scores[0]], numbers, place, width))
        made.append(row)
    return made


def _weight_of(record: Mapping[str, Any], roles: Roles) -> list[float]:
    """Return the weight of a record, a list without one if there is no such column."""
    if roles.weight is None:
        return []
    number = as_number(record[roles.weight])
    if number is None or number < 0:
        value = excerpt(record[roles.weight])
        raise DataError(f"{roles.weight!r} must hold a number >= 0; received {value}")
    return [number]


def _list_of_scores(name: str, value: Any, number: int) -> list[Any]:
    """Return a list that has one score for each of so many texts."""
    if not isinstance(value, list) or len(value) != number:
        raise DataError(f"{name!r} must be a list of {number} scores; received {excerpt(value)}")
    return value


def _scores(name: str, value: Any, numbers: Sequence[int], place: int, width: int) -> list[float]:
    """Return a teacher's scores of one positive and of the negatives that are kept.

    Args:
        name: The column.
        value: Its cell: the scores of all positives of the record and then of all its negatives, or a margin.
        numbers: How many positives and negatives the record has, which are all scored; empty for a positive
            whose list may hold more scores than are read.
        place: Which of the positives is meant.
        width: How many negatives are kept.
    """
    if isinstance(value, str):  # a cell of a CSV file
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DataError(f"{name!r} must hold numbers; received {excerpt(value)}") from error
    if isinstance(value, list):
        if not numbers:
            return _numbers(value[: width + 1], width)
        found = _list_of_scores(name, value, sum(numbers))
        return _numbers([found[place], *found[numbers[0] : numbers[0] + width]], width)
    if width != 1:
        raise DataError(
            f"one number in {name!r} is the margin over one negative; the row has {width} "
            "negatives. Several need a list of scores, the positive's first"
        )
    return _numbers([value, 0.0], width)


def _numbers(values: list[Any], width: int) -> list[float]:
    found = [number for value in values if (number := as_number(value)) is not None]
    if not len(found) == len(values) == width + 1:
        raise DataError(
            f"expected {width + 1} finite scores (the positive, then each negative); "
            f"received {excerpt(values)}"
        )
    return found


def column_identities(rows: Dataset, column: str) -> NDArray[np.int64]:
    """Return the identity of each text of a column, `[rows]` int64."""
    return np.fromiter(map(text_identity, TextColumn(rows, column)), np.int64, len(rows))


def with_relevant(rows: Dataset) -> Dataset:
    """Add the column `relevant` if a query has several positives, so that none counts as its negative.

    Memory holds two numbers per row, and no text.

    Args:
        rows: Rows under the column contract.

    Returns:
        The rows, with the column if any query has two different positives.
    """
    import datasets
    import pyarrow as pa

    anchors, positives = column_identities(rows, ANCHOR), column_identities(rows, POSITIVE)
    unique, group = np.unique(anchors, return_inverse=True)
    pairs = np.unique(np.stack([group, positives], axis=1), axis=0)  # [distinct pairs, 2], sorted by group
    if len(pairs) == len(unique):
        return rows
    starts = np.searchsorted(pairs[:, 0], np.arange(len(unique) + 1))  # [groups + 1]
    lengths = np.diff(starts)[group]  # [rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    places = np.repeat(starts[group] - offsets[:-1], lengths) + np.arange(offsets[-1])
    lists = pa.LargeListArray.from_arrays(offsets, pairs[places, 1])
    return datasets.concatenate_datasets([rows, datasets.Dataset(pa.table({RELEVANT: lists}))], axis=1)
