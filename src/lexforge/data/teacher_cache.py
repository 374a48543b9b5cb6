"""Teacher embeddings on disk: each distinct text is encoded once, and looked up by its hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from lexforge.common.files import leftover, new_directory, remove_leftovers
from lexforge.common.manifest import read_manifest, write_manifest
from lexforge.data.cache import cache_folder
from lexforge.data.retrieval_data import DataError

FORMAT = "lexforge-teacher-block"
_BLOCK = r"block-[0-9a-f]{16}"


class Teacher(Protocol):
    """Anything that turns texts into vectors of length 1.

    `name` is a fingerprint: two teachers that give other vectors have other names.
    """

    name: str

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts: [N, D] float32, rows of L2 norm 1 (a text without any known word may be all 0)."""
        ...


class TeacherCache:
    """Teacher embeddings on disk, looked up by text.

    The folder holds one sub-folder a block of texts: `embeddings.npy` [n, D] float16 (memory-mapped, so that
    the ranks of a machine share it), `keys.npy` [n] uint64 text hashes, and `manifest.json` with the
    teacher's name and checksums. A block appears under its name only when it is complete, by a rename: a
    killed run loses the block it was at, and two runs that fill the same folder cannot spoil each other's.

    Args:
        folder: A cache that `build` has filled.

    Raises:
        FileNotFoundError: There is no block in the folder.
        DataError: A block that is broken, or blocks of different teachers; the message names what to delete.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        names = sorted(_block_folders(self.folder))
        if not names:
            raise FileNotFoundError(f"{self.folder} holds no teacher cache; make one with TeacherCache.build")
        self._blocks: list[NDArray[np.float16]] = []
        manifests: list[dict[str, Any]] = []
        keys: list[NDArray[np.uint64]] = []
        for block_folder in names:
            manifest, block_keys, embeddings = _read_block(block_folder)
            identity = manifest["teacher"], manifest["dimension"]
            if manifests and identity != (manifests[0]["teacher"], manifests[0]["dimension"]):
                raise DataError(
                    f"{block_folder} is of the teacher {manifest['teacher']!r}, {names[0]} of "
                    f"{manifests[0]['teacher']!r}; delete one of them"
                )
            manifests.append(manifest)
            keys.append(block_keys)
            self._blocks.append(embeddings)
        self.teacher: str = manifests[0]["teacher"]
        self.dimension: int = manifests[0]["dimension"]
        self._starts = np.cumsum([0, *(len(block) for block in keys)])
        self._keys, self._rows = np.unique(np.concatenate(keys), return_index=True)

    @classmethod
    def build(
        cls,
        teacher: Teacher,
        texts: Iterable[str],
        folder: str | Path | None = None,
        *,
        block_texts: int = 8192,
    ) -> TeacherCache:
        """Encode what the cache does not hold yet, with a progress bar, and open it.

        Args:
            teacher: Encodes the texts.
            texts: All texts of the training; repeats are encoded once.
            folder: Where the cache is, or will be. It may be that of an earlier or a killed run. None is a
                folder of the teacher's name in the user's cache.
            block_texts: Texts encoded and written at a time.

        Returns:
            The open cache.

        Raises:
            ValueError: No text, or `block_texts` below 1.
            DataError: The folder holds something else, the cache of another teacher, or a broken block; or
                the teacher returned embeddings of a wrong shape or with a value that is not finite.
        """
        if block_texts < 1:
            raise ValueError(f"block_texts must be at least 1, got {block_texts}")
        folder = cache_folder() / "teachers" / teacher.name if folder is None else Path(folder)
        distinct = list(dict.fromkeys(texts))
        if not distinct:
            raise ValueError("the teacher cache needs at least one text, got none")
        cache = cls(folder) if folder.is_dir() and _block_folders(folder) else None
        if cache is not None and cache.teacher != teacher.name:
            raise DataError(
                f"{folder} is the cache of the teacher {cache.teacher!r}, not of {teacher.name!r}; "
                "delete it or choose another folder"
            )
        missing = distinct if cache is None else cache.missing(distinct)
        if cache is not None and not missing:
            return cache
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder, _BLOCK)
        with tqdm(total=len(missing), desc=f"teacher {teacher.name}", unit="text", disable=None) as bar:
            for start in range(0, len(missing), block_texts):
                block = missing[start : start + block_texts]
                dimension = None if cache is None else cache.dimension
                _write_block(folder, teacher.name, block, _checked(teacher.encode(block), block, dimension))
                bar.update(len(block))
        return cls(folder)

    def __len__(self) -> int:
        """The number of distinct texts."""
        return len(self._keys)

    def missing(self, texts: Sequence[str]) -> list[str]:
        """Those of the texts that have not been encoded."""
        found = self._find(_keys(texts))[1]
        return [text for text, known in zip(texts, found, strict=True) if not known]

    def __getitem__(self, texts: Sequence[str]) -> NDArray[np.float16]:
        """The embeddings of texts.

        Args:
            texts: N texts that were given to `build`.

        Returns:
            [N, D] float16, a row each.

        Raises:
            TypeError: A single string instead of a list.
            KeyError: A text that is not in the cache.
        """
        if isinstance(texts, str):
            raise TypeError(f"expected a list of texts, got the single text {texts!r}")
        positions, found = self._find(_keys(texts))
        if not found.all():
            unknown = texts[int(np.argmin(found))]
            raise KeyError(f"{unknown!r} is not in the teacher cache {self.folder}; build it with all texts")
        embeddings = np.empty((len(texts), self.dimension), dtype=np.float16)
        rows = self._rows[positions]
        blocks = np.searchsorted(self._starts, rows, side="right") - 1
        for block in np.unique(blocks):
            chosen = blocks == block
            embeddings[chosen] = self._blocks[block][rows[chosen] - self._starts[block]]
        return embeddings

    def _find(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        positions = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return positions, self._keys[positions] == keys


def _key_bytes(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()


def _keys(texts: Sequence[str]) -> NDArray[np.uint64]:
    """[N] 64-bit hashes; among a million texts two are equal with probability 3e-8."""
    return np.frombuffer(b"".join(map(_key_bytes, texts)), dtype="<u8").astype(np.uint64)


def _checked(embeddings: Any, texts: Sequence[str], dimension: int | None) -> NDArray[np.float16]:
    """A teacher's output as [N, D] float16, or an error that names the first text it failed on."""
    array = np.asarray(embeddings)
    if array.ndim != 2 or len(array) != len(texts) or (dimension or array.shape[1]) != array.shape[1]:
        width = "D" if dimension is None else dimension
        raise DataError(f"the teacher must return [{len(texts)}, {width}] numbers, got shape {array.shape}")
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is reported below
        narrow = array.astype(np.float16)
    finite = np.isfinite(narrow).all(axis=1)
    if not finite.all():
        raise DataError(f"the teacher gives a value that is not finite for {texts[int(np.argmin(finite))]!r}")
    return narrow


def _block_folders(folder: Path) -> list[Path]:
    """The complete blocks of a cache folder, which may hold nothing else but unfinished ones."""
    blocks = []
    for entry in folder.iterdir() if folder.is_dir() else ():
        half = leftover(entry.name)
        if re.fullmatch(_BLOCK, entry.name if half is None else half.name) is None:
            raise DataError(f"{folder} is no teacher cache: it holds {entry.name!r}; choose another folder")
        if half is None:
            blocks.append(entry)
    return blocks


def _write_block(folder: Path, teacher: str, texts: Sequence[str], embeddings: NDArray[np.float16]) -> None:
    keys = _keys(texts)
    name = hashlib.sha256(f"{teacher}\n".encode() + keys.tobytes()).hexdigest()[:16]
    fields = {"teacher": teacher, "dimension": embeddings.shape[1], "count": len(texts)}
    # A second process may have written the block of the same texts.
    with new_directory(folder / f"block-{name}", keep_existing=True) as beside:
        np.save(beside / "keys.npy", keys)
        np.save(beside / "embeddings.npy", embeddings)
        write_manifest(beside, FORMAT, fields)


def _read_block(folder: Path) -> tuple[dict[str, Any], NDArray[np.uint64], NDArray[np.float16]]:
    try:
        manifest = read_manifest(folder, FORMAT)
        keys = np.load(folder / "keys.npy", allow_pickle=False)
        embeddings = np.load(folder / "embeddings.npy", mmap_mode="r", allow_pickle=False)
        intact = (
            keys.shape == (manifest["count"],)
            and keys.dtype == np.uint64
            and embeddings.shape == (manifest["count"], manifest["dimension"])
            and embeddings.dtype == np.float16
        )
    except Exception as error:  # what numpy raises on damaged bytes is of many kinds, and open-ended
        raise DataError(f"the teacher cache block {folder} is broken ({error}); delete it") from error
    if not intact:
        raise DataError(
            f"the teacher cache block {folder} is broken (keys {keys.dtype} {keys.shape} and embeddings "
            f"{embeddings.dtype} {embeddings.shape} do not fit {manifest}); delete it"
        )
    return manifest, keys, embeddings
