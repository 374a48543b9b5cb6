"""Dense search through FAISS: exact (flat) or approximate (HNSW, IVF).

FAISS is imported in the functions that use it: a machine that trains and searches sparse vectors only, such
as a borrowed GPU, can import this package without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from lexforge.common.similarity import Similarity, check_similarity
from lexforge.retrieval.base import (
    DocumentIds,
    Hits,
    Index,
    RankedPositions,
    check_ids,
    check_k,
    complete_ties,
    read_ids,
    write_ids,
)
from lexforge.retrieval.vectors import dense_vectors, dense_width
from lexforge.storage.files import new_directory
from lexforge.storage.manifest import read_manifest, write_manifest

FORMAT = "lexforge-faiss-index"


class FaissIndex(Index):
    """Search for the k best dense vectors by inner product or cosine.

    Documents of equal score stand in the order of their positions. A flat search finds exactly the k best,
    also where several documents have the k-th score. FAISS computes a score by one of two routines, depending
    on the number of queries, and the two round differently in the last bits. HNSW and IVF can miss documents
    and then return fewer than k. IVF is trained on the first documents that are added.

    Args:
        width: Number D of dimensions.
        similarity: `dot` or `cosine`. For `cosine` the index scales documents and queries to unit length.
        layout: `Flat`, `HNSW32` or `IVF256,Flat`, or with other numbers, as `faiss.index_factory` reads it.
        parameters: `efConstruction=200,efSearch=128` or `nprobe=16`, as `faiss.ParameterSpace` reads it.

    Raises:
        ModuleNotFoundError: If the package `faiss-cpu` is not installed.
        ValueError: If the similarity is unknown.
    """

    holds = ("dense",)

    def __init__(
        self, width: int, similarity: Similarity = "dot", layout: str = "Flat", parameters: str = ""
    ) -> None:
        import faiss

        self.width = width
        self.similarity: Similarity = check_similarity(similarity)
        self.layout, self.parameters = layout, parameters
        self._ids = DocumentIds()
        self._index: Any = faiss.index_factory(width, layout, faiss.METRIC_INNER_PRODUCT)
        space: Any = faiss.ParameterSpace()
        space.set_index_parameters(self._index, parameters)
        if hasattr(self._index, "cp"):  # of IVF
            self._index.cp.min_points_per_centroid = 1  # otherwise FAISS prints advice to the console

    @classmethod
    def build(
        cls,
        documents: NDArray,
        ids: list[str],
        similarity: Similarity = "dot",
        layout: str = "Flat",
        parameters: str = "",
    ) -> FaissIndex:
        """Return an index of the documents.

        Args:
            documents: Finite floats `[N, D]`.
            ids: N distinct strings.
            similarity: `dot` or `cosine`.
            layout: As of the class.
            parameters: As of the class.

        Returns:
            The index.

        Raises:
            ModuleNotFoundError: If the package `faiss-cpu` is not installed.
            TypeError: If `documents` is not a 2-dimensional float array.
            ValueError: If a value is not finite, the number of ids is not N, an id occurs twice, or there are
                fewer documents than IVF lists.
        """
        index = cls(dense_width(documents, "documents"), similarity, layout, parameters)
        index.add(documents, ids)
        return index

    def add(self, documents: NDArray, ids: list[str]) -> None:
        """Append documents.

        Args:
            documents: Finite floats `[N, D]`.
            ids: N distinct strings that the index does not hold yet.

        Raises:
            TypeError: If `documents` is not a 2-dimensional float array.
            ValueError: If `build` would refuse the documents or ids, D is not the width of the index, or an
                id is in the index already.
        """
        vectors = dense_vectors(documents, "documents", self.width, self.similarity)
        check_ids(ids, len(vectors), self._ids.positions)
        if not self._index.is_trained:
            if len(vectors) < self._index.nlist:
                raise ValueError(
                    f"the first documents must be at least as many as the {self._index.nlist} IVF lists; "
                    f"received {len(vectors)} documents"
                )
            self._index.train(vectors)
        self._index.add(vectors)
        self._ids.extend(ids)

    def search(self, queries: NDArray, k: SupportsIndex) -> Hits:
        """Find the k documents of highest similarity to each query.

        Args:
            queries: Finite floats `[Q, D]`.
            k: Number of hits wanted per query, at least 1; above the number of documents it means all of
                them.

        Returns:
            The hits; their scores can have any sign.

        Raises:
            TypeError: If `queries` is not a 2-dimensional float array, or `k` not an integer.
            ValueError: If a value is not finite, D is not the width of the index, or k is below 1.
        """
        wanted = min(check_k(k), len(self))
        vectors = dense_vectors(queries, "queries", self.width, self.similarity)

        def search(rows: NDArray[np.int64], depth: int) -> Iterator[tuple[int, RankedPositions]]:
            values, places = self._index.search(vectors[rows], depth)  # both [rows, depth]
            for row, row_places, row_values in zip(rows.tolist(), places, values, strict=True):
                found = row_places >= 0  # HNSW and IVF fill what they do not find with -1
                yield row, (row_places[found], row_values[found])

        asked = np.arange(len(vectors))
        exact = self.layout == "Flat"
        return self._ids.hits(*complete_ties(search, asked, len(vectors), wanted, len(self), exact))

    def vectors(self, ids: Sequence[str] | None = None) -> NDArray[np.float32]:
        """Return the vectors of documents, as the index compares them.

        Args:
            ids: Ids of the index; None takes all documents.

        Returns:
            `[n, D] float32`, in the order of the ids, or of the positions. With the similarity `cosine` rows
            have unit length.

        Raises:
            KeyError: If the index has no document of an id.
        """
        if hasattr(self._index, "make_direct_map"):  # of IVF
            self._index.make_direct_map()  # from a position to its list
        if ids is None:
            found: NDArray[np.float32] = self._index.reconstruct_n(0, len(self))
        else:
            found = self._index.reconstruct_batch(
                np.array([self._ids.positions[name] for name in ids], np.int64)
            )
        return found

    def save(self, directory: str | Path) -> None:
        """Write the index: the file of FAISS, the ids, and a manifest with checksums.

        Args:
            directory: A new or empty directory.

        Raises:
            FileExistsError: If the directory is not empty.
            OSError: If a file cannot be written; nothing is left of them.
        """
        import faiss

        settings = {"layout": self.layout, "parameters": self.parameters}
        fields = {"width": self.width, "similarity": self.similarity, **settings}
        with new_directory(directory) as path:
            # By Python's file: FAISS only prints that its own could not be closed, and a cut one would stay.
            with (path / "index.faiss").open("wb") as file:
                writer = faiss.PyCallbackIOWriter(file.write)  # type: ignore[attr-defined] # the stubs lack it
                faiss.write_index(self._index, writer)
            write_ids(path, self._ids)
            write_manifest(path, FORMAT, fields)

    @classmethod
    def load(cls, directory: str | Path, verify: bool = False) -> FaissIndex:
        """Read a saved index into memory.

        Args:
            directory: The directory that `save` wrote.
            verify: Changes nothing here, because every file is read and compared with its checksum anyway.

        Returns:
            The index.

        Raises:
            FileNotFoundError: If the directory holds no index, or a file of it is missing.
            ValueError: If a file is cut, altered, or of another format.
        """
        import faiss

        fields = read_manifest(directory, FORMAT, verify)
        path = Path(directory)
        try:
            index = cls(**fields)
            index._ids = read_ids(path)
            read = faiss.read_index(str(path / "index.faiss"))
            _check_class(read, type(index._index))
            index._index = read
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            if not (path / "index.faiss").is_file():  # deleted since its checksum was read; see `open_index`
                raise FileNotFoundError(f"{path / 'index.faiss'} is missing") from error
            raise ValueError(f"{path} is not a FAISS index of lexforge: {error}") from error
        if index._index.ntotal != len(index) or index._index.d != index.width:
            raise ValueError(
                f"{path}: the file of FAISS holds {index._index.ntotal} vectors of width {index._index.d}; "
                f"the other files say {len(index)} of width {index.width}"
            )
        return index

    @property
    def nbytes(self) -> int:
        """The number of bytes of the index as FAISS serialises it."""
        import faiss

        return int(faiss.serialize_index(self._index).nbytes)


def _check_class(index: Any, wanted: Any) -> None:
    """Refuse what FAISS reads from a file as gladly as an index of this package.

    Raises:
        ValueError: If the index has another class, its vectors or centres are not compared by inner product
            in a flat index, or its lists are not in memory.
    """
    import faiss

    parts: list[tuple[Any, Any]] = [(index, wanted)]
    for name in ("storage", "quantizer"):  # HNSW keeps its vectors in a second index, and IVF its centres
        if hasattr(index, name):
            parts.append((faiss.downcast_index(getattr(index, name)), faiss.IndexFlat))
    for part, expected in parts:
        if not isinstance(part, expected) or part.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ValueError(
                f"the file must hold a {expected.__name__} with metric {faiss.METRIC_INNER_PRODUCT} (inner "
                f"product); it holds a {type(part).__name__} with metric {part.metric_type}"
            )
    if hasattr(index, "invlists"):
        lists = faiss.downcast_InvertedLists(index.invlists)
        if not isinstance(lists, faiss.ArrayInvertedLists):  # others may lie in any file of this machine
            raise ValueError(f"the file must hold its lists itself; it has {type(lists).__name__}")
