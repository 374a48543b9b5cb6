"""The documents of a collection file, read from the disk where they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from lexforge.common.text_identity import text_identity
from lexforge.common.types import DataError
from lexforge.data.lines import excerpt, numbered_lines, stripped
from lexforge.data.pairs import column_identities
from lexforge.data.tables import TextColumn, rows_in_cache


class Collection(Mapping[str, str]):
    """Document id -> text of a file with an id, a tab and a text per line, such as MS MARCO's collection.tsv.

    The documents are written once to an Arrow file in the cache, which is mapped. Memory holds 16 bytes per
    document: a hash of its id, and its place.

    Args:
        path: The file, plain or compressed (.gz, .zst).

    Raises:
        DataError: If a line has no tab or is not UTF-8, an id is empty or occurs twice, or there is no line
            at all; the message names file and line.
    """

    def __init__(self, path: Path) -> None:
        self._rows = rows_in_cache(path, "collection", lambda: _records(path), ("id", "text"))
        found = column_identities(self._rows, "id")  # [N]
        self._places = np.argsort(found, kind="stable")  # [N] documents in the order of their hashes
        self._hashes = found[self._places]  # [N], sorted
        repeated = self._places[1:][self._hashes[1:] == self._hashes[:-1]]
        if len(repeated):
            place = int(repeated.min())
            key = self._rows[place]["id"]
            raise DataError(f"{path}:{place + 1}: the id {key!r} occurs a second time")

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        """Yield the ids in the order of the file."""
        return iter(TextColumn(self._rows, "id"))

    def __getitem__(self, key: str) -> str:
        """Return the text of a document, without white space at its ends."""
        wanted = text_identity(key)
        at = int(np.searchsorted(self._hashes, wanted))
        if at == len(self) or self._hashes[at] != wanted:
            raise KeyError(key)
        text: str = self._rows[int(self._places[at])]["text"]
        return text

    def values(self) -> TextColumn:  # type: ignore[override]  # a sequence, and no search for each id
        """Return the texts in the order of the file, as a sequence that reads them from the disk."""
        return TextColumn(self._rows, "text")


def _records(path: Path) -> Iterator[dict[str, str]]:
    """Yield id and text of each line."""
    number = 0
    for number, line in numbered_lines(path):
        key, tab, text = line.partition("\t")
        if not tab:
            raise DataError(f"{path}:{number}: expected an id, a tab and a text; received {excerpt(line)}")
        if not key:
            raise DataError(f"{path}:{number}: the id is empty")
        yield {"id": key, "text": stripped(text)}
    if not number:
        raise DataError(f"{path} holds no record")
