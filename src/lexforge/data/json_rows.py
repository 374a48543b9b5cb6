"""Rows as an Arrow file with one type a column, in whatever row a column or a type comes.

The readers of `datasets` take the columns and types of the first megabytes for those of a whole file, a
column of texts that look like dates for dates, integers beyond 64 bits for floats, and, beside values of
other types, texts that look like JSON for what they spell. Here a text stays the text that it is, and an
integer keeps its digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

_NO_SPACE = re.compile(r"\S")
_BATCH = 10_000  # objects in memory at a time
ROUNDED = 2.0**53
"""From here on a float may be an integer that was rounded."""


def objects_of(text: str) -> Iterator[Any]:
    """Yield the values of a JSON text that stand one after another, and those of an array one by one.

    Args:
        text: The text of a file.

    Yields:
        A value, as `json.loads` returns it.

    Raises:
        json.JSONDecodeError: If the text is no JSON.
    """
    decoder, end = json.JSONDecoder(), 0
    while first := _NO_SPACE.search(text, end):
        value, end = decoder.raw_decode(text, first.start())
        yield from value if isinstance(value, list) else [value]


def write_objects(
    objects: Callable[[], Iterable[Mapping[str, Any]]], texts: Sequence[str], place: Path
) -> None:
    """Write objects to an Arrow file, which `datasets.Dataset.from_file` maps.

    Args:
        objects: Yields them; it is called twice, first for the types, unless `texts` names the columns.
        texts: The columns of objects that hold texts alone; empty where others may come.
        place: The new file. A value that is missing is null. The values of a column of several types stay
            what they are, by `datasets.Json`, but for integers beyond 64 bits, which become texts.
    """
    import datasets

    types: dict[str, pa.DataType | None] = dict.fromkeys(texts, pa.string())  # None for several
    for batch in () if texts else _batches(objects()):
        for name in dict.fromkeys(name for each in batch for name in each):
            types[name] = _common_type(types.get(name, pa.null()), [each.get(name) for each in batch])
    single = {name: arrow_type for name, arrow_type in types.items() if arrow_type}
    known = datasets.Features.from_arrow_schema(pa.schema(single))
    features = datasets.Features({name: known[name] if types[name] else datasets.Json() for name in types})
    schema = features.arrow_schema
    with pa.ipc.new_stream(str(place), schema) as out:
        for batch in _batches(objects()):
            columns = [_column([each.get(field.name) for each in batch], field.type) for field in schema]
            out.write_batch(pa.record_batch(columns, schema=schema))


def _batches(objects: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    rest = iter(objects)
    while batch := list(islice(rest, _BATCH)):
        yield batch


def _common_type(known: pa.DataType | None, values: list[Any]) -> pa.DataType | None:
    """The type that holds the values of earlier batches and these; None if there is none."""
    if known is None:
        return None
    try:
        schemas = [pa.schema({"": known}), pa.schema({"": pa.array(values).type})]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowException, OverflowError):
        return None


def _column(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    if isinstance(arrow_type, pa.BaseExtensionType):  # that of `datasets.Json`
        values = [None if cell is None else json.dumps(_within_64_bits(cell)) for cell in values]
    return pa.array(values, arrow_type)


def _within_64_bits(cell: Any) -> Any:
    """Return a cell with texts for the integers that the reader of `datasets.Json` does not take."""
    if isinstance(cell, int) and cell.bit_length() > 63:
        return str(cell)
    if isinstance(cell, list):
        return [_within_64_bits(each) for each in cell]
    if isinstance(cell, dict):
        return {name: _within_64_bits(each) for name, each in cell.items()}
    return cell
