"""Training rows under the column contract as a data set, and as a file of JSON lines; digests of data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lexforge.common.text_identity import text_digest
from lexforge.common.types import DataError
from lexforge.data.columns import ANCHOR, RELEVANT, validate_columns
from lexforge.data.lines import json_objects
from lexforge.storage.files import write_text

if TYPE_CHECKING:
    from datasets import Dataset


def rows_to_dataset(rows: Sequence[Mapping[str, Any]] | Dataset) -> Dataset:
    """Make a data set of training rows.

    It holds what `datasets.Dataset.from_list` would, but that function needs many times the memory of the
    column `relevant`, which repeats the list of a query in each of the query's rows.

    Args:
        rows: Rows under the column contract, at least one; a data set is returned as it is.

    Returns:
        The data set; its columns are those of the first row.
    """
    import pyarrow as pa
    from datasets import Dataset

    if isinstance(rows, Dataset):
        return rows

    columns = {}
    for name in rows[0]:
        cells = [row[name] for row in rows]
        columns[name] = _lists_of_integers(cells) if name == RELEVANT else pa.array(cells)
    table = pa.table(columns)
    # A name for caches that follows from the content; `datasets` would pickle the whole table to find one.
    digest = hashlib.blake2b(repr(table.schema).encode(), digest_size=8)
    for column in table.columns:
        for buffer in (buffer for part in column.chunks for buffer in part.buffers() if buffer is not None):
            digest.update(buffer)
    return Dataset(table, fingerprint=digest.hexdigest())


def _lists_of_integers(lists: Sequence[Sequence[int]]) -> Any:
    """Return lists of 64-bit integers as one Arrow array; a list of many rows is converted once."""
    import pyarrow as pa

    arrays: dict[int, NDArray[np.int64]] = {}  # by the identity of the list, which `lists` keeps alive
    parts = []
    for values in lists:
        if id(values) not in arrays:
            arrays[id(values)] = np.array(values, dtype=np.int64)
        parts.append(arrays[id(values)])
    offsets = np.cumsum([0, *map(len, parts)])  # [rows + 1]
    return pa.LargeListArray.from_arrays(offsets, np.concatenate(parts))


def write_training_rows(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write training rows as JSON lines, compressed if the name ends in .gz or .zst.

    `relevant` is written with the first row of each anchor only, because a query with hundreds of relevant
    documents has as many rows, and each of them would hold the whole list.

    Args:
        path: The file; an existing one is replaced.
        rows: Rows under the column contract.

    Raises:
        DataError: If the rows break the contract.
    """
    validate_columns(rows)
    written: dict[str, list[int]] = {}  # anchor -> the list that its first row holds
    lines = []
    for row in rows:
        line = dict(row)
        if RELEVANT in row:
            known = written.get(row[ANCHOR])
            if known is row[RELEVANT] or known == row[RELEVANT]:
                del line[RELEVANT]
            written[row[ANCHOR]] = row[RELEVANT]
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    write_text(path, "".join(lines))


def read_training_rows(path: str | Path) -> list[dict[str, Any]]:
    """Read a file that `write_training_rows` wrote.

    Args:
        path: The file.

    Returns:
        The rows.

    Raises:
        FileNotFoundError: If there is no such file.
        DataError: If a line is no JSON object in UTF-8, or if the rows break the column contract; the message
            names the file, and the line that is wrong.
    """
    rows = [row for _, row in json_objects(Path(path), ())]
    if not rows:
        raise DataError(f"{path} holds no row")
    read: dict[str, Any] = {}  # anchor -> the list of the last row that holds one
    for row in chain(rows, rows):  # twice, because the lines may have been shuffled since
        anchor = row.get(ANCHOR)
        if isinstance(anchor, str) and RELEVANT in row:
            read[anchor] = row[RELEVANT]
        elif isinstance(anchor, str) and anchor in read:
            row[RELEVANT] = read[anchor]
    validate_columns(rows, lambda row: f"{path}:{row + 1}")
    return rows


def digests(parts: Mapping[str, Iterable[Any]]) -> dict[str, dict[str, Any]]:
    """Count the records of each part of the data and compute their digest.

    Args:
        parts: Name -> records in their order, in JSON types: a `datasets.Dataset`, rows, or anything else
            that yields them.

    Returns:
        Name -> `count`, and `digest` with 40 hexadecimal digits.
    """
    found = {}
    for name, records in parts.items():
        number = count()
        # `zip` asks for a text first, so the next number is that of the texts it has yielded.
        digest = text_digest(text for text, _ in zip(_texts(records), number, strict=False))
        found[name] = {"count": next(number), "digest": digest}
    return found


def _texts(records: Any) -> Iterator[str]:
    """Yield each record as JSON; those of a data set, which may lie on the disk, a thousand at a time."""
    if hasattr(records, "column_names"):
        batches = records.iter(1000)
        records = (row for batch in batches for row in zip(*batch.values(), strict=True))
    for record in records:
        yield json.dumps(record, ensure_ascii=False)
