"""Teacher embeddings on disk: each distinct text of a kind is encoded once, and looked up by its hash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lexforge.common.progress import Progress
from lexforge.common.similarity import Similarity
from lexforge.common.types import TEXT_KINDS, DataError, TextKind, check_texts
from lexforge.data.columns import text_columns, text_kind
from lexforge.storage.blocks import BlockCache, Keys, hash_keys
from lexforge.storage.files import cache_folder

FORMAT = "lexforge-teacher-block"
# Texts that are encoded and written at a time, which is what a killed run can lose: a minute or less with a
# teacher of 22 M weights on one core. Fewer would be more files, and a cache maps all of them.
BLOCK_TEXTS = 2048


class EmbeddingTeacher(Protocol):
    """Anything that turns queries and documents into vectors.

    `name` is a fingerprint: two teachers whose vectors or prompts differ have different names. `similarity`
    says how its vectors are compared.
    """

    name: str
    similarity: Similarity

    def encode(self, texts: Sequence[str], kind: TextKind) -> NDArray[np.float32]:
        """Embed N texts of one kind.

        Args:
            texts: The texts.
            kind: "query" or "document", by which the teacher chooses its prompt.

        Returns:
            `[N, D]` float32, rows of L2 norm 1 for the cosine; a text without any known word may give a row
            of zeros.
        """
        ...


class TeacherCache:
    """Teacher embeddings on disk, looked up by text and kind.

    A text is encoded with the teacher's prompt for its kind, so a text that occurs both as a query and as a
    document has two vectors. The key of a vector is a hash of kind and text; the prompts belong to the name
    of the teacher, and a folder holds the vectors of one teacher. `BlockCache` describes the files; the
    vectors are float16.

    Args:
        folder: A cache that `build` has filled.
        similarity: How the vectors of its teacher are compared.

    Raises:
        FileNotFoundError: If the folder holds no block.
        DataError: If a block is broken, or if the blocks belong to different teachers; the message says what
            to delete.
    """

    def __init__(self, folder: str | Path, similarity: Similarity = "cosine") -> None:
        self.folder = Path(folder)
        self.similarity = similarity
        self._blocks = BlockCache(self.folder, FORMAT, np.float16)
        if self._blocks.teacher is None or self._blocks.dimension is None:
            raise FileNotFoundError(f"{self.folder} holds no teacher cache; make one with TeacherCache.build")
        self.teacher: str = self._blocks.teacher
        self.dimension: int = self._blocks.dimension

    @classmethod
    def build(
        cls,
        teacher: EmbeddingTeacher,
        queries: Iterable[str],
        documents: Iterable[str],
        folder: str | Path | None = None,
    ) -> TeacherCache:
        """Encode what the cache does not hold yet, report progress, and open the cache.

        The texts are read once, one after the other. Memory holds two blocks of them and 24 bytes per
        distinct text, so they may stand in a file that exceeds it. The progress has a total where both have a
        length.

        Args:
            teacher: The teacher that encodes the texts.
            queries: Texts that are encoded as queries; repeats are encoded once.
            documents: Texts that are encoded as documents; repeats are encoded once.
            folder: The folder of the cache, which may be that of an earlier or a killed run. None takes a
                folder with the teacher's name in the user's cache.

        Returns:
            The open cache.

        Raises:
            ValueError: If there is no text.
            DataError: If the folder holds something else, the cache of another teacher or a broken block, or
                if the teacher returns embeddings of a wrong shape or a value that is not finite.
        """
        pairs = zip(TEXT_KINDS, (queries, documents), strict=True)
        texts = ((kind, text) for kind, given in pairs for text in given)
        total = None
        if isinstance(queries, Sized) and isinstance(documents, Sized):
            total = len(queries) + len(documents)
        return cls._fill(teacher, texts, folder, total)

    @classmethod
    def build_for_rows(
        cls,
        teacher: EmbeddingTeacher,
        rows: Iterable[Mapping[str, Any]],
        folder: str | Path | None = None,
    ) -> TeacherCache:
        """Build the cache of training rows: anchors are encoded as queries, all other texts as documents.

        Args:
            teacher: The teacher that encodes the texts.
            rows: Rows under the column contract; columns without texts are ignored.
            folder: The folder of the cache, as for `build`.

        Returns:
            The open cache.

        Raises:
            ValueError: As for `build`.
            DataError: As for `build`.
        """
        of_rows = ((text_kind(column), row[column]) for row in rows for column in text_columns(row))
        return cls._fill(teacher, of_rows, folder)

    @classmethod
    def _fill(
        cls,
        teacher: EmbeddingTeacher,
        texts: Iterable[tuple[TextKind, str]],
        folder: str | Path | None,
        total: int | None = None,
    ) -> TeacherCache:
        """Encode the (kind, text) pairs that the cache does not hold yet, block by block, and open it.

        Progress counts each of the `total` pairs: one that is known or repeats another when it is compared,
        and any other when it is encoded.
        """
        place = cache_folder("teachers", teacher.name) if folder is None else Path(folder)
        blocks = BlockCache(place, FORMAT, np.float16)
        blocks.refuse_other_teacher(teacher.name)
        seen: dict[TextKind, list[str]] = {kind: [] for kind in TEXT_KINDS}  # not compared with the cache
        missing: dict[TextKind, dict[str, None]] = {kind: {} for kind in TEXT_KINDS}  # not encoded yet
        read = 0
        with Progress(total, f"teacher {teacher.name}", "texts") as progress:

            def encode(kind: TextKind, least: int) -> None:
                """Encode whole blocks of missing texts, and the rest if `least` is 1."""
                waiting, before = seen[kind], len(missing[kind])
                known = blocks.known(_keys(waiting, kind))
                missing[kind] |= {text: None for text, here in zip(waiting, known, strict=True) if not here}
                if settled := len(waiting) - (len(missing[kind]) - before):
                    progress.update(settled)
                seen[kind] = []
                while len(missing[kind]) >= least:
                    block = list(islice(missing[kind], BLOCK_TEXTS))
                    shape = (len(block), blocks.dimension or "D")
                    embeddings = narrowed(teacher.encode(block, kind), shape, np.float16, block)
                    blocks.append(teacher.name, _keys(block, kind), embeddings)
                    for text in block:
                        del missing[kind][text]
                    progress.update(len(block))

            for kind, text in texts:
                read += 1
                seen[kind].append(text)
                if len(seen[kind]) >= BLOCK_TEXTS:
                    encode(kind, BLOCK_TEXTS)
            if not read:
                raise ValueError("the teacher cache needs at least one text; received none")
            for kind in TEXT_KINDS:
                encode(kind, 1)
        return cls(place, teacher.similarity)

    def lookup(self, texts: Sequence[str], kind: TextKind) -> NDArray[np.float16]:
        """Return the embeddings of texts.

        Args:
            texts: N texts that were passed to `build` with this kind.
            kind: "query" or "document".

        Returns:
            `[N, D]` float16, one row per text.

        Raises:
            TypeError: If `texts` is a single string instead of a list.
            ValueError: If the kind is unknown.
            KeyError: If a text is not in the cache with this kind.
        """
        check_texts(texts)
        if kind not in TEXT_KINDS:
            raise ValueError(f"kind must be one of {TEXT_KINDS}; received {kind!r}")
        keys = _keys(texts, kind)
        known = self._blocks.known(keys)
        if not known.all():
            unknown = texts[int(np.argmin(known))]
            raise KeyError(
                f"{unknown!r} is not in the teacher cache {self.folder} as a {kind}; build it with all texts"
            )
        return self._blocks.rows(keys)


def _keys(texts: Sequence[str], kind: TextKind) -> Keys:
    """Return the keys of texts, `[N]` uint64; the line feed ends the kind, which holds none."""
    return hash_keys(f"{kind}\n{text}".encode() for text in texts)


def narrowed(
    output: Any, shape: tuple[int | str, ...], dtype: type[np.floating], names: Sequence[Any]
) -> NDArray[Any]:
    """Return a teacher's output in a narrower type; an error names the first text or pair that is wrong.

    Args:
        output: What the teacher returned, a row or a number for each name.
        shape: The shape that it must have; "D" stands for any length.
        dtype: The type in which it is kept.
        names: The texts or pairs.

    Raises:
        DataError: If the shape is another one, or a value is not finite in that type.
    """
    array = np.asarray(output)
    if array.ndim != len(shape) or any(
        wanted not in ("D", length) for wanted, length in zip(shape, array.shape, strict=True)
    ):
        wanted = ", ".join(map(str, shape))
        raise DataError(f"the teacher must return [{wanted}] numbers; received {array.shape}")
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is reported below
        narrow = array.astype(dtype)
    finite = np.isfinite(narrow).reshape(len(narrow), -1).all(axis=1)
    if not finite.all():
        raise DataError(f"the teacher gives a value that is not finite for {names[int(np.argmin(finite))]!r}")
    return narrow
