"""Exact sparse search: an index in memory or memory-mapped from disk."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from scipy import sparse

from lexforge.common.similarity import Similarity, check_similarity
from lexforge.kernels.postings import (
    KeptArrangement,
    block_size_for,
    segments_of,
    top_k,
)
from lexforge.kernels.postings_layout import (
    CHAINED,
    Postings,
    PostingsFiles,
    check_postings,
    documents_of,
    join_postings,
    of_arrays,
)
from lexforge.retrieval.base import DocumentIds, Hits, Index, check_ids, check_k, read_ids, write_ids
from lexforge.retrieval.vectors import SparseMatrix, sparse_vectors, sparse_width
from lexforge.storage.files import new_directory
from lexforge.storage.manifest import read_manifest, write_manifest

FORMAT = "lexforge-inverted-index"
ARRAYS = Postings._fields[1:]  # the first field is the block size, a number
# The large arrays, which are memory-mapped because a search reads only parts of them. `check_postings` makes
# sure that none of their values points outside an array.
MAPPED = {f"{name}.npy" for name in CHAINED}
SEGMENTS_AHEAD = 8  # that wait to be written, in about 300 MB

# Guards the parts and the ids of every index, which must fit each other. A process that is forked while a
# thread adds would find some that do not, and wait for ever for a thread that it lacks; so it waits before.
_CHANGING = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_CHANGING.acquire, after_in_parent=_CHANGING.release, after_in_child=_CHANGING.release
    )


class InvertedIndex(Index):
    """Exact search for the k best sparse, non-negative vectors, in float32, on the threads of numba.

    A document with score 0 is never a hit. Documents of equal score stand in the order of their positions.
    The algorithm is described in `lexforge.kernels.postings`. The first search that asks for many hits of a
    small corpus (up to 8 million weights) arranges its weights a second time and keeps them, in about 50 MB.

    Threads may add, search and save at the same time: a search or a save sees whole additions, and waits for
    the one that is under way. A forked process searches on one thread (`lexforge.kernels.parallel`).

    Args:
        num_terms: Width V of the vectors.
        similarity: `dot` or `cosine`. For `cosine` the index scales documents and queries to unit length.

    Raises:
        ValueError: If `num_terms` is below 1, or the similarity is unknown.
    """

    holds = ("sparse",)

    def __init__(self, num_terms: int, similarity: Similarity = "dot") -> None:
        if num_terms < 1:
            raise ValueError(f"num_terms must be at least 1; received {num_terms}")
        self.num_terms = num_terms
        self.similarity: Similarity = check_similarity(similarity)
        self._ids = DocumentIds()
        empty = sparse.csr_array(np.zeros((0, num_terms), np.float32))
        self._parts = list(segments_of(empty))
        self._keeper = KeptArrangement()

    @classmethod
    def build(
        cls,
        documents: SparseMatrix,
        ids: list[str],
        similarity: Similarity = "dot",
    ) -> InvertedIndex:
        """Return an index of the documents.

        Args:
            documents: CSR `[N, V]` with finite weights >= 0.
            ids: N distinct strings.
            similarity: `dot` or `cosine`.

        Returns:
            The index.

        Raises:
            TypeError: If `documents` is not a scipy CSR matrix.
            ValueError: If a weight is negative or not finite, the number of ids is not N, or an id occurs
                twice.
        """
        index = cls(sparse_width(documents, "documents"), similarity)
        index.add(documents, ids)
        return index

    def add(self, documents: SparseMatrix, ids: list[str]) -> None:
        """Append documents.

        If each call adds tens of thousands of documents, the index searches as fast as after one `build`;
        smaller calls make it slower.

        Args:
            documents: CSR `[N, V]` with finite weights >= 0.
            ids: N distinct strings that the index does not hold yet.

        Raises:
            TypeError: If `documents` is not a scipy CSR matrix.
            ValueError: If `build` would refuse the documents or ids, V is not the width of the index, or an
                id is in the index already.
        """
        vectors = sparse_vectors(documents, "documents", self.num_terms, self.similarity)
        with _CHANGING:
            check_ids(ids, vectors.shape[0], self._ids.positions)
            # The number of the first documents decides how large the blocks are.
            before = self._parts if len(self) else []
            segments = list(segments_of(vectors, before[0].block_size if before else None))
            self._ids.extend(ids)  # first, because a search of one part does not wait
            self._parts = [*before, *segments]

    def search(self, queries: SparseMatrix, k: SupportsIndex) -> Hits:
        """Find the k documents of highest score for each query.

        Args:
            queries: CSR `[Q, V]` with finite weights >= 0.
            k: Number of hits wanted per query, at least 1; above the number of documents it means all of
                them.

        Returns:
            The hits; a query without a weight has none.

        Raises:
            TypeError: If `queries` is not a scipy CSR matrix, or `k` not an integer.
            ValueError: If a weight is negative or not finite, V is not the width of the index, or k is below
                1.
        """
        wanted = check_k(k)
        vectors = sparse_vectors(queries, "queries", self.num_terms, self.similarity)
        positions, scores, counts = top_k(vectors, self.postings(), wanted, keeper=self._keeper)
        return self._ids.hits(positions, scores, counts)

    def vectors(self, ids: Sequence[str] | None = None) -> sparse.csr_array:
        """Return the vectors of documents, as the index compares them.

        Args:
            ids: Ids of the index; None takes all documents.

        Returns:
            CSR `[n, V] float32`, in the order of the ids, or of the positions. With the similarity `cosine`
            rows have unit length.

        Raises:
            KeyError: If the index has no document of an id.
        """
        postings = self.postings()
        places = None if ids is None else np.array([self._ids.positions[name] for name in ids], np.int64)
        return documents_of(postings, places)

    def save(self, directory: str | Path) -> None:
        """Write the index: its arrays, the ids, and a manifest with checksums.

        Args:
            directory: A new or empty directory.

        Raises:
            FileExistsError: If the directory is not empty.
        """
        with _CHANGING:
            parts = self._parts
        documents = sum(part.num_documents for part in parts)  # more may be added meanwhile
        with new_directory(directory) as path:
            with PostingsFiles(path) as files:
                for part in parts:
                    files.add(part)
            self._write_rest(path, islice(self._ids, documents), parts[0].block_size)

    @classmethod
    def write(
        cls,
        directory: str | Path,
        blocks: Iterable[tuple[SparseMatrix, list[str]]],
        num_terms: int,
        documents: int,
        similarity: Similarity = "dot",
    ) -> None:
        """Write an index of documents that come in blocks, as `save` does; memory holds two blocks at a time.

        Args:
            directory: A new or empty directory.
            blocks: CSR `[n, V]` with finite weights >= 0, and n ids, of each block. The index searches
                fastest with blocks of a multiple of 32,768 documents.
            num_terms: Width V of the vectors.
            documents: Number of all documents, which decides the layout.
            similarity: `dot` or `cosine`.

        Raises:
            FileExistsError: If the directory is not empty.
            TypeError: If a block is not a scipy CSR matrix.
            ValueError: If `add` would refuse a block.
        """
        index, block_size = cls(num_terms, similarity), block_size_for(documents)
        with new_directory(directory) as path:
            # Segments are written while the next ones are built, and while the next documents come.
            with PostingsFiles(path) as files, ThreadPoolExecutor(1) as writer:
                # The first part is that of an index without documents.
                writing = deque([writer.submit(files.add, index._parts[0]._replace(block_size=block_size))])
                for matrix, ids in blocks:
                    vectors = sparse_vectors(matrix, "documents", num_terms, index.similarity)
                    check_ids(ids, vectors.shape[0], index._ids.positions)
                    for segment in segments_of(vectors, block_size):
                        if len(writing) == SEGMENTS_AHEAD:
                            writing.popleft().result()
                        writing.append(writer.submit(files.add, segment))
                    index._ids.extend(ids)
                for one in writing:
                    one.result()
            index._write_rest(path, index._ids, block_size)

    def _write_rest(self, path: Path, names: Iterable[str], block_size: int) -> None:
        """Write what a saved index has beside its postings."""
        write_ids(path, names)
        fields = {"num_terms": self.num_terms, "similarity": self.similarity, "block_size": block_size}
        write_manifest(path, FORMAT, fields)

    @classmethod
    def load(cls, directory: str | Path, verify: bool = False) -> InvertedIndex:
        """Read a saved index; the arrays are memory-mapped, so the index can be larger than memory.

        Args:
            directory: The directory that `save` wrote.
            verify: Compare every file with its checksum, including large arrays that seem unchanged since
                `save`. Without it, a damaged large array can lead to wrong scores.

        Returns:
            The index.

        Raises:
            FileNotFoundError: If the directory holds no index, or a file of it is missing.
            ValueError: If a file is cut, altered, or of another format.
        """
        fields = read_manifest(directory, FORMAT, verify, MAPPED)
        path = Path(directory)
        try:
            index = cls(fields["num_terms"], fields["similarity"])
            index._ids = read_ids(path)
            files = [np.load(path / f"{name}.npy", mmap_mode="r") for name in ARRAYS]
            postings = Postings(fields["block_size"], *(np.asarray(file) for file in files))
            check_postings(postings, len(index), index.num_terms)
        except FileNotFoundError:  # deleted since its checksum was read, as by a change of the documents
            raise
        except Exception as error:  # numpy raises errors of many types for a damaged header
            raise ValueError(f"{path} is not an inverted index of lexforge: {error}") from error
        index._parts = [postings]
        return index

    @property
    def nbytes(self) -> int:
        """The number of bytes of the arrays."""
        return sum(getattr(part, name).nbytes for part in self._parts for name in ARRAYS)

    def postings(self) -> Postings:
        """Return the postings of all documents, joined into one set first where several calls added them."""
        parts = self._parts  # a list that never changes: others take its place
        if len(parts) > 1:
            with _CHANGING:
                self._parts = parts = [join_postings(self._parts)]
        return parts[0]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what was pickled, with arrays that cannot be written to.

        The search would be compiled once more for arrays that can be.
        """
        parts = [of_arrays(**part._asdict()) for part in state["_parts"]]
        self.__dict__ = {**state, "_parts": parts}
