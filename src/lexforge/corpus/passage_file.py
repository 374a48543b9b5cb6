"""The texts of an index on the disk, one passage a line, read where they are asked for."""

from __future__ import annotations

import hashlib
import json
import mmap
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from lexforge.common.types import Passage


def write_passages(path: Path, passages: Mapping[str, Passage]) -> str:
    """Write passages as JSON lines in BEIR's layout, with the id of the document as a further field.

    Args:
        path: The file.
        passages: Passage id -> passage.

    Returns:
        The SHA-256 of the file, in hexadecimal.
    """
    digest = hashlib.sha256()
    with path.open("wb") as stream:
        for key, passage in passages.items():
            record = {"_id": key, "title": passage.title, "text": passage.text, "document": passage.document}
            line = json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
            digest.update(line)
            stream.write(line)
    return digest.hexdigest()


class StoredPassages(Mapping[str, Passage]):
    """Passage id -> passage of a file of `write_passages`.

    The file goes on with the passages that the index leaves out, because they repeat others. Memory holds the
    ids and 8 bytes per passage. The file may be deleted while this is in use, because it is mapped into
    memory; Windows refuses to delete it.

    Args:
        path: The file.
        ids: The ids of the passages of the index, in the order of the first lines.
        sha256: What `write_passages` returned.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not the one that was written.
    """

    def __init__(self, path: Path, ids: list[str], sha256: str) -> None:
        starts, digest, end = array("q"), hashlib.sha256(), 0
        with path.open("rb") as stream:
            for line in stream:
                starts.append(end)
                end += len(line)
                digest.update(line)
            if digest.hexdigest() != sha256 or len(starts) < len(ids):
                raise ValueError(f"{path} is not the file of the index: damaged or replaced")
            self._file = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        self._starts = np.append(np.frombuffer(starts, np.int64), end)  # [N + 1], the last is the end
        self._places = {key: place for place, key in enumerate(ids)}

    def __getitem__(self, key: str) -> Passage:
        """Return a passage."""
        return self._read(self._places[key])[1]

    def __iter__(self) -> Iterator[str]:
        """Yield the ids in the order of the file."""
        return iter(self._places)

    def __len__(self) -> int:
        """Return the number of passages."""
        return len(self._places)

    @property
    def repeated(self) -> dict[str, Passage]:
        """Return id -> passage of those that the index leaves out."""
        return dict(self._read(place) for place in range(len(self), len(self._starts) - 1))

    def _read(self, place: int) -> tuple[str, Passage]:
        """Return id and passage of a line."""
        start, end = self._starts[place : place + 2]
        record = json.loads(self._file[start:end].decode("utf-8", "surrogatepass"))
        return record["_id"], Passage(record["title"], record["text"], record["document"])
