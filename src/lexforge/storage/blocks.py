"""Numbers of a teacher on disk, found by key: written in blocks, each of which is whole or absent.

All rows of a cache are hashed each time it is opened, and not only sizes and headers compared, because
docs/guarantees.md promises that a changed bit in a cache is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lexforge.common.types import DataError
from lexforge.storage.files import finished_name, new_directory, remove_leftovers
from lexforge.storage.manifest import read_manifest, write_manifest

_BLOCK = r"block-[0-9a-f]{16}"
Keys = NDArray[np.uint64]


class BlockCache:
    """Rows of one teacher's numbers under 64-bit keys, in a folder that may grow.

    The folder holds one sub-folder per block: `keys.npy` `[n]` uint64, `rows.npy` `[n, D]` (memory-mapped, so
    that the processes of a machine share it) and `manifest.json` with the teacher's name and checksums. A
    block gets its name by a rename once it is complete. So a killed process loses only the block that it was
    writing, and two processes that fill the same folder cannot damage each other's blocks.

    Args:
        folder: The folder; it may be absent, and then the cache is empty until `append`.
        format_name: The name of the format; blocks of another format are refused.
        dtype: The type of the numbers.

    Raises:
        DataError: If a block is broken, if the blocks belong to different teachers, or if the folder holds
            something else. The message says what to delete.
    """

    def __init__(self, folder: Path, format_name: str, dtype: DTypeLike) -> None:
        self.folder, self._format_name, self._dtype = folder, format_name, np.dtype(dtype)
        self.teacher: str | None = None  # None while there is no block
        self.dimension: int | None = None
        self._rows: list[NDArray[Any]] = []  # of each block, [n, D]
        self._starts = np.zeros(1, np.int64)  # where the rows of each block begin in all, and their end
        self._keys: Keys = np.empty(0, np.uint64)  # of all blocks, each once, ascending
        self._places = np.empty(0, np.int64)  # where the row of each of them stands in all rows
        first = None
        for block in sorted(self._blocks()):
            fields, keys, rows = self._read(block)
            if first is not None and (fields["teacher"], rows.shape[1]) != (self.teacher, self.dimension):
                raise DataError(
                    f"{block} is of the teacher {fields['teacher']!r}, {first} of {self.teacher!r}; "
                    "delete one of them"
                )
            first = first or block
            self.teacher, self.dimension = fields["teacher"], rows.shape[1]
            self._insert(keys, rows)

    def refuse_other_teacher(self, teacher: str) -> None:
        """Refuse the folder if its blocks belong to another teacher.

        Args:
            teacher: The name of the teacher that is about to be asked.

        Raises:
            DataError: If they do.
        """
        if self.teacher is not None and self.teacher != teacher:
            raise DataError(
                f"{self.folder} is the cache of the teacher {self.teacher!r}; received {teacher!r}. "
                "Delete it or choose another folder"
            )

    def known(self, keys: Keys) -> NDArray[np.bool_]:
        """Return `[N]` booleans: whether each key has a row."""
        if not len(self._keys):
            return np.zeros(len(keys), dtype=bool)
        return self._keys[self._positions(keys)] == keys

    def rows(self, keys: Keys) -> NDArray[Any]:
        """Return the rows of keys.

        Args:
            keys: `[N]` uint64, all of which are known.

        Returns:
            `[N, D]` of the cache's type, in the order of the keys.
        """
        found = np.empty((len(keys), self.dimension or 0), dtype=self._dtype)
        if not len(keys):
            return found
        places = self._places[self._positions(keys)]  # [N] positions in all blocks joined
        blocks = np.searchsorted(self._starts, places, side="right") - 1
        for block in np.unique(blocks):
            chosen = blocks == block
            found[chosen] = self._rows[block][places[chosen] - self._starts[block]]
        return found

    def append(self, teacher: str, keys: Keys, rows: NDArray[Any]) -> None:
        """Write a block and make its rows available; what killed processes left half written is removed.

        Args:
            teacher: The name of the teacher that gave the rows.
            keys: `[n]` uint64.
            rows: `[n, D]`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder, _BLOCK)
        name = hashlib.sha256(f"{teacher}\n".encode() + keys.tobytes()).hexdigest()[:16]
        fields = {"teacher": teacher, "dimension": rows.shape[1], "count": len(keys)}
        block = self.folder / f"block-{name}"
        # Another process may have written the block of the same keys meanwhile; then its block is kept.
        with new_directory(block, keep_existing=True) as beside:
            np.save(beside / "keys.npy", keys)
            np.save(beside / "rows.npy", rows.astype(self._dtype, copy=False))
            write_manifest(beside, self._format_name, fields)
        self.teacher, self.dimension = teacher, rows.shape[1]
        # Read back as a memory map: the rows need not stay in memory.
        self._insert(*self._read(block)[1:])

    def _insert(self, keys: Keys, rows: NDArray[Any]) -> None:
        """Add a new last block, its keys among the sorted ones; a key that is known keeps its first row."""
        self._rows.append(rows)
        start = int(self._starts[-1])
        self._starts = np.append(self._starts, start + len(keys))
        fresh = np.flatnonzero(~self.known(keys))
        sorted_keys, first = np.unique(keys[fresh], return_index=True)
        at = np.searchsorted(self._keys, sorted_keys)
        self._keys = np.insert(self._keys, at, sorted_keys)
        self._places = np.insert(self._places, at, start + fresh[first])

    def _positions(self, keys: Keys) -> NDArray[np.intp]:
        """Return where each key stands, or would stand, among the sorted keys."""
        return np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)

    def _blocks(self) -> list[Path]:
        """Return the complete blocks of the folder, which may hold nothing else but unfinished ones."""
        blocks = []
        for entry in self.folder.iterdir() if self.folder.is_dir() else ():
            name = finished_name(entry.name)
            if re.fullmatch(_BLOCK, name) is None:
                raise DataError(
                    f"{self.folder} is no teacher cache: it holds {entry.name!r}; choose another folder"
                )
            if name == entry.name:
                blocks.append(entry)
        return blocks

    def _read(self, block: Path) -> tuple[dict[str, Any], Keys, NDArray[Any]]:
        """Read a block and check it against its manifest."""
        try:
            fields = read_manifest(block, self._format_name)
            keys = np.load(block / "keys.npy", allow_pickle=False)
            rows = np.load(block / "rows.npy", mmap_mode="r", allow_pickle=False)
            intact = (
                keys.shape == (fields["count"],)
                and keys.dtype == np.uint64
                and rows.shape == (fields["count"], fields["dimension"])
                and rows.dtype == self._dtype
            )
        except Exception as error:  # numpy raises errors of many kinds on damaged bytes
            raise DataError(f"the teacher cache block {block} is broken ({error}); delete it") from error
        if not intact:
            raise DataError(
                f"the teacher cache block {block} is broken (keys {keys.dtype} {keys.shape} and rows "
                f"{rows.dtype} {rows.shape} do not fit {fields}); delete it"
            )
        return fields, keys, rows


def hash_keys(parts: Iterable[bytes]) -> Keys:
    """Hash byte strings to 64-bit keys; among a million keys two are equal with probability 3e-8.

    Args:
        parts: N byte strings.

    Returns:
        `[N]` uint64.
    """
    digests = b"".join(hashlib.blake2b(part, digest_size=8).digest() for part in parts)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)
