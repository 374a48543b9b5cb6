"""Digests of the data of a run, by which a resumed run notices that they have changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from lexforge.common.text_identity import text_digest


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
