"""The documents of a collection file, read from the disk where they are asked for.

The file is not read by `datasets`: a text may hold tabs, a wrong line must be named, and memory holds hashes
of the ids and no text. The reader of lines of `datasets` takes twice as long at the first opening (11 s, not
5.5, for a million passages of 40 words) and keeps a copy of the whole file in its cache.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence, ValuesView
from contextlib import ExitStack
from pathlib import Path
from typing import overload

import numpy as np

from lexforge.common.types import DataError
from lexforge.data.lines import excerpt, lines_of, open_bytes, stripped
from lexforge.storage.files import cache_folder

_BINARY = getattr(os, "O_BINARY", 0)  # without it Windows changes line ends and stops at the byte 26
_POSITION = threading.Lock()  # held from moving the position in a file to reading there


class Collection(Mapping[str, str]):
    """Document id -> text of a file with an id, a tab and a text per line, such as MS MARCO's collection.tsv.

    Memory holds 24 bytes per document: where its line begins, a hash of its id, and the document that each
    hash belongs to. A file that ends in .gz or .zst is written to the user's cache without its compression,
    under no name, so that the space is free again when the process ends.

    Args:
        path: The file. It must not change while it is in use.

    Raises:
        DataError: If a line has no tab, an id is empty or occurs twice, or there is no line at all; the
            message names file and line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        packed = path.suffix in (".gz", ".zst")
        self._file = _nameless_file() if packed else os.open(path, os.O_RDONLY | _BINARY)
        weakref.finalize(self, os.close, self._file)
        starts, hashes, end = array("q"), bytearray(), 0
        with open_bytes(path) as stream, ExitStack() as open_copy:
            copy = open_copy.enter_context(open(self._file, "wb", closefd=False)) if packed else None
            for number, line in lines_of(stream, path):
                key, tab, _ = _fields(line)
                if not tab:
                    text = excerpt(line.rstrip(b"\r\n").decode())
                    raise DataError(f"{path}:{number}: expected an id, a tab and a text; received {text}")
                if not key:
                    raise DataError(f"{path}:{number}: the id is empty")
                if copy is not None:
                    copy.write(line)
                elif number == 1:  # it begins after a byte order mark
                    end = stream.tell() - len(line)
                starts.append(end)
                hashes += _hash(key)
                end += len(line)
        if not starts:
            raise DataError(f"{path} holds no record")
        self._status = self._state()
        self._starts = np.append(np.frombuffer(starts, np.int64), end)  # [N + 1], the last is the end
        found = np.frombuffer(bytes(hashes), np.uint64)  # [N]
        self._places = np.argsort(found, kind="stable")  # [N] documents in the order of their hashes
        self._hashes = found[self._places]  # [N], sorted
        self._refuse_repeated_ids()

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._hashes)

    def __iter__(self) -> Iterator[str]:
        """Yield the ids in the order of the file."""
        return (key for key, _ in self.pairs())

    def __getitem__(self, key: str) -> str:
        """Return the text of a document, without white space at its ends."""
        place = self._find(key)
        if place is None:
            raise KeyError(key)
        return self.pair(place)[1]

    def __contains__(self, key: object) -> bool:
        """Return whether there is a document of that id."""
        return isinstance(key, str) and self._find(key) is not None

    def values(self) -> CollectionTexts:
        """Return the texts in the order of the file, as a sequence that reads them from the disk."""
        return CollectionTexts(self)

    def pair(self, place: int) -> tuple[str, str]:
        """Return id and text of the document at a place of the file, from 0."""
        start, end = self._starts[place : place + 2]
        self._check_unchanged()
        return _pair(_read_at(self._file, int(end - start), int(start)))

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield id and text of each document; some megabytes of them are in memory at a time."""
        size = 2**12  # documents per read
        for first in range(0, len(self), size):
            self._check_unchanged()
            starts = self._starts[first : first + size + 1]
            block = _read_at(self._file, int(starts[-1] - starts[0]), int(starts[0]))
            for start, end in zip(starts - starts[0], starts[1:] - starts[0], strict=False):
                yield _pair(block[start:end])

    def _find(self, key: str) -> int | None:
        """Return the place of an id, or None; the id of the line itself decides, not its hash."""
        try:
            wanted = np.frombuffer(_hash(key.encode()), np.uint64)[0]
        except UnicodeEncodeError:
            return None
        for at in range(int(np.searchsorted(self._hashes, wanted)), len(self)):
            if self._hashes[at] != wanted:
                return None
            if self.pair(int(self._places[at]))[0] == key:
                return int(self._places[at])
        return None

    def _refuse_repeated_ids(self) -> None:
        for at in np.flatnonzero(self._hashes[1:] == self._hashes[:-1]):
            first, second = (int(place) for place in self._places[at : at + 2])
            key = self.pair(second)[0]
            if self.pair(first)[0] == key:
                raise DataError(f"{self.path}:{second + 1}: the id {key!r} occurs a second time")

    def _state(self) -> tuple[int, int]:
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns

    def _check_unchanged(self) -> None:
        if self._state() != self._status:
            raise DataError(f"{self.path} was changed while it was in use; start again")


class CollectionTexts(ValuesView[str], Sequence[str]):
    """The texts of a collection by their place in the file; those of `Mapping` would search for each id."""

    _mapping: Collection

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        """Return one text, or the list of texts of a slice."""
        places = range(len(self))[place]
        if isinstance(places, int):
            return self._mapping.pair(places)[1]
        return [self._mapping.pair(each)[1] for each in places]

    def __iter__(self) -> Iterator[str]:
        """Yield the texts; the file is read once from its beginning to its end."""
        return (text for _, text in self._mapping.pairs())


def _read_at(file: int, size: int, offset: int) -> bytes:
    """Read a part of a file that several threads share, and forked processes where there are any."""
    if hasattr(os, "pread"):  # moves no position
        return os.pread(file, size, offset)
    with _POSITION:  # Windows
        os.lseek(file, offset, os.SEEK_SET)
        return os.read(file, size)


def _nameless_file() -> int:
    """Open a file in the user's cache that has no name, and whose space is free once it is closed."""
    with tempfile.TemporaryFile(dir=cache_folder()) as file:
        return os.dup(file.fileno())


def _fields(line: bytes) -> tuple[bytes, bytes, bytes]:
    """Cut a line at its first tab."""
    return line.rstrip(b"\r\n").partition(b"\t")


def _pair(line: bytes) -> tuple[str, str]:
    key, _, text = _fields(line)
    return key.decode(), stripped(text.decode())


def _hash(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=8).digest()
