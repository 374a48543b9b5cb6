"""Rows of a query, a text that answers it, negatives and scores, whatever their columns are called.

`pair_rows` turns a table into rows under the column contract (`lexforge.data.columns`) without reading it
into memory: the rows are written to an Arrow file once, and mapped.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lexforge import __version__
from lexforge.common.text_identity import text_identity
from lexforge.common.types import NEGATIVE_COLUMN, POSITIVE_COLUMNS, QUERY_COLUMNS, DataError, joined
from lexforge.data.columns import ANCHOR, LABEL, POSITIVE, RELEVANT, text_columns
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
# Columns of a converted row that are left out at the end: the row of the table that it was made of, the
# identity of its texts, and the arguments of `Faults.bad`, which are missing for a good row.
_SOURCE_ROW, _IDENTITY, _FAULT, _MESSAGE = "source_row", "identity", "fault", "message"
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


def pair_rows(table: Table, columns: Mapping[str, str], faults: Faults) -> Table:
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
        and `weight` if it has weights. A repeated row that is left out adds its weight to that of the first.

    Raises:
        DataError: If columns are missing or could be several, if a column that is called as scores are holds
            something else, or if no row is left.
    """
    import datasets
    from datasets.fingerprint import update_fingerprint

    rows, where = table.rows, table.name
    roles = find_roles(where, rows.column_names, columns)
    if table.headerless:
        taken = "queries, answers and negatives" if roles.negatives else "queries and answers"
        faults.note(f"{where} has no header: its columns were taken for {taken}")
        _refuse_ids(where, rows, roles)
    if (
        roles.scores
        and SCORES not in columns
        and not any(_is_given(cell) for name in roles.scores for cell in TextColumn(rows, name))
    ):
        faults.note(f"{where}: no score stands in {' or '.join(roles.scores)}, so none is read")
        roles = replace(roles, scores=())
    width = _negatives_per_row(where, rows, roles)
    _refuse_other_labels(where, rows, roles, width, named=SCORES in columns)
    _note_thousands(table, roles, faults)
    negatives = (f"negative_{rank}" for rank in range(1, width + 1))
    features = {name: datasets.Value("string") for name in (ANCHOR, POSITIVE, *negatives)}
    if roles.scores:
        features[LABEL] = datasets.Sequence(datasets.Value("float64"))
    if roles.weight is not None:
        features[WEIGHT] = datasets.Value("float64")
    features |= {name: datasets.Value("int64") for name in (_IDENTITY, _SOURCE_ROW)}
    features |= {name: datasets.Value("string") for name in (_FAULT, _MESSAGE)}

    def convert(batch: dict[str, list[Any]], places: list[int]) -> dict[str, list[Any]]:
        made: list[dict[str, Any]] = []
        for offset, place in enumerate(places):
            record = {name: cells[offset] for name, cells in batch.items()}
            made += (row | {_SOURCE_ROW: place} for row in _rows_or_fault(record, roles, width))
        return {name: [row.get(name) for row in made] for name in features}

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
    return _distinct_good_rows(made, table, faults)


def _cache_file(rows: Dataset, fingerprint: str) -> str | None:
    """Return the place for the converted rows of a folder of `save_to_disk`; None leaves it to `datasets`.

    `datasets` would write them into that folder, which is the user's and may be read-only.
    """
    files = rows.cache_files
    if not files or not (Path(files[0]["filename"]).parent / "state.json").is_file():
        return None
    return str(cache_folder("tables") / f"{fingerprint}.arrow")


def _distinct_good_rows(made: Dataset, table: Table, faults: Faults) -> Table:
    """Count the faults in the converted rows, and return the good ones, each once and with all its weight.

    The faults are columns of these, so that they are known also where `datasets` finds them in its cache.
    """
    identities, places = (made.data.column(name).to_numpy() for name in (_IDENTITY, _SOURCE_ROW))
    has_fault, has_texts = (made.data.column(name).is_valid().to_numpy() for name in (_FAULT, ANCHOR))
    faults.rows += len(table.rows)
    for row in made.select_columns([_FAULT, _MESSAGE, _SOURCE_ROW]).select(np.flatnonzero(has_fault)):
        faults.bad(row[_FAULT], table.place(row[_SOURCE_ROW]), row[_MESSAGE])
    good = np.flatnonzero(has_texts)
    if not len(good):
        faults.refuse_nothing_left()
    _, first, group = np.unique(identities[good], return_index=True, return_inverse=True)
    for at in np.delete(good, first):
        faults.told("repeated rows, which count once", table.place(int(places[at])))
    made = made.remove_columns([_SOURCE_ROW, _IDENTITY, _FAULT, _MESSAGE])
    if len(first) == len(made):
        return table.made_into(made, places)
    first = np.sort(first)
    kept = made.select(good[first])
    if WEIGHT in made.column_names:
        sums = np.bincount(group, made.data.column(WEIGHT).to_numpy()[good])[group[first]]
        kept = kept.remove_columns(WEIGHT).add_column(WEIGHT, sums.tolist())
    return table.made_into(kept, places[good[first]])


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

    lengths: set[int | None] = set()
    for batch in rows.select_columns(lists).with_format("arrow").iter(10_000):
        lengths.update(pyarrow.compute.list_value_length(batch[lists[0]]).to_pylist())
    found = sorted(length for length in lengths if length)
    if len(found) > 1:
        logger.info(
            "%s: each row keeps its first %d negatives; the lists hold up to %d", where, found[0], found[-1]
        )
    return found[0] if found else 0


def _is_given(cell: Any) -> bool:
    """Return whether a cell holds anything; one of a CSV file is a text."""
    return cell is not None and str(cell).strip() != ""


def _refuse_other_labels(where: str, rows: Dataset, roles: Roles, width: int, *, named: bool) -> None:
    """Refuse a column of single values for rows that need a list of scores: it may hold something else.

    Raises:
        DataError: If none of the first hundred rows holds a list, or if no row has a negative: a list may
            then say which of its texts are no answers.
    """
    if len(roles.scores) != 1 or width == 1:
        return
    [name] = roles.scores
    found = [cell for cell in rows[:100][name] if _is_given(cell)]
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
            first = f"{table.place(place)}: {cell.strip()}"
    if first:
        faults.note(f"{first} in {roles.weight!r} is read with a decimal point; write thousands without it")


def _rows_or_fault(record: Mapping[str, Any], roles: Roles, width: int) -> list[dict[str, Any]]:
    """Make the rows of a record with their weight and identity, or one row without texts and with its fault.

    A fault of the weight alone stands in the first row of the record, so that it is counted once.
    """
    try:
        made = _rows_of(record, roles, width)
    except DataError as error:
        fault = error.fault if isinstance(error, BadRow) else WRONG
        return [{_FAULT: fault, _MESSAGE: str(error), _IDENTITY: 0, WEIGHT: 0.0}]
    for row in made:
        row[_IDENTITY] = text_identity("\0".join(row[name] for name in text_columns(row)))
    if roles.weight is not None:
        cell = record[roles.weight]
        weight = as_number(cell)
        if weight is None or weight < 0:
            weight, message = 0.0, f"{roles.weight!r} must hold a number >= 0; received {excerpt(cell)}"
            made[0] |= {_FAULT: "wrong weights, never drawn", _MESSAGE: message}
        for row in made:
            row[WEIGHT] = weight
    return made


def _rows_of(record: Mapping[str, Any], roles: Roles, width: int) -> list[dict[str, Any]]:
    """Make the rows of one record: `anchor`, `positive`, the negatives and `label`."""
    anchor, positives = record[roles.anchor], _texts_of(record[roles.positive])
    negatives = [(name, _text_of(record[name])) for name in roles.negatives]
    if len(roles.negatives) == 1:  # a list of texts, or one text; null is none
        [name] = roles.negatives
        negatives = [(name, text) for text in _texts_of(record[name]) if text is not None]
    kept = negatives[:width]
    named = [(roles.anchor, anchor), *((roles.positive, text) for text in positives or [""]), *kept]
    for name, text in named:
        if text is None or (isinstance(text, str) and not stripped(text)):
            raise BadRow(BLANK, f"the {name} is {'missing' if text is None else 'blank'}")
        require_texts(None, **{name: text})
    if len(kept) < width:
        raise BadRow(BLANK, f"the {roles.negatives[0]} is empty, and other rows hold texts there")
    if any(anchor.split() == positive.split() for positive in positives):
        same = f"the {roles.anchor} and the {roles.positive} are the same text"
        raise BadRow("query and text identical", f"{same}; received {excerpt(anchor)}")
    made = []
    for positive in positives:
        row = {ANCHOR: anchor.strip(), POSITIVE: positive.strip()}
        made.append(row | {f"negative_{rank}": text.strip() for rank, (_, text) in enumerate(kept, 1)})
    if roles.scores:
        own, given = _scores_of(record, roles, len(positives), len(negatives), width)
        for place, row in enumerate(made):
            row[LABEL] = _numbers([*own[place : place + 1], *given[:width]], width)
    return made


def _texts_of(cell: Any) -> list[Any]:
    """Return the texts of a list, or one text."""
    return [_text_of(each) for each in cell] if isinstance(cell, list) else [_text_of(cell)]


def _text_of(cell: Any) -> Any:
    """Return title and text of a passage in fields, as Tevatron and DPR write it; other cells as they are."""
    if isinstance(cell, dict) and isinstance(cell.get("text"), str):
        return joined(cell.get("title") or "", cell["text"])
    return cell


def _scores_of(
    record: Mapping[str, Any], roles: Roles, positives: int, negatives: int, width: int
) -> tuple[list[Any], list[Any]]:
    """Return the cells with a teacher's scores of all positives of a record, and of its negatives.

    Args:
        record: The record.
        roles: Its columns, among them those of the scores.
        positives: Number of its positives.
        negatives: Number of its negatives.
        width: How many negatives are kept.
    """
    if len(roles.scores) == 2:
        own, given = roles.scores
        return _list_of_scores(own, record[own], positives), _list_of_scores(given, record[given], negatives)
    [name] = roles.scores
    value = record[name]
    if not _is_given(value):
        raise DataError(f"{name!r} is missing, and other rows hold scores there")
    if isinstance(value, str):  # a cell of a CSV file
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DataError(f"{name!r} must hold numbers; received {excerpt(value)}") from error
    if isinstance(value, list):
        # Of several columns of negatives the user may have named one, and the list may score them all.
        if positives > 1 or (roles.negatives and isinstance(record[roles.negatives[0]], list)):
            value = _list_of_scores(name, value, positives + negatives)
        return value[:positives], value[positives:]
    if width != 1:
        raise DataError(
            f"one number in {name!r} is the margin over one negative; the row has {width} "
            "negatives. Several need a list of scores, the positive's first"
        )
    return [value] * positives, [0.0]


def _list_of_scores(name: str, value: Any, number: int) -> list[Any]:
    """Return a list that has one score for each of so many texts."""
    if not isinstance(value, list) or len(value) != number:
        raise DataError(f"{name!r} must be a list of {number} scores; received {excerpt(value)}")
    return value


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
