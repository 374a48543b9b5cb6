"""Dense search through FAISS: exact (flat) or approximate (HNSW, IVF)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from lexforge.common.files import new_directory
from lexforge.common.manifest import read_manifest, write_manifest
from lexforge.common.similarity import Similarity, check_similarity
from lexforge.retrieval.base import DocumentIds, Hits, check_k, read_ids, write_ids
from lexforge.retrieval.vectors import dense_vectors, dense_width

FORMAT = "lexforge-faiss-index"
TIE_MARGIN = 16  # hits asked for beyond k, so that most ties at rank k are seen whole at once


@dataclass(frozen=True)
class Flat:
    """Every document is compared: exact."""


@dataclass(frozen=True)
class HNSW:
    """A navigable small-world graph (Malkov and Yashunin, 2018): approximate, fast to search.

    Args:
        neighbours: Links a node (M).
        ef_construction: Candidates kept while building.
        ef_search: Candidates kept while searching; more is more exact.
    """

    neighbours: int = 32
    ef_construction: int = 200
    ef_search: int = 128


@dataclass(frozen=True)
class IVF:
    """Inverted lists around k-means centres: approximate. The first documents added train the centres.

    Args:
        lists: Number of centres, at most that of the first documents.
        probes: Lists looked into for each query; more is more exact.
    """

    lists: int = 256
    probes: int = 16


class FaissIndex:
    """Top-k over dense vectors by inner product or cosine.

    Ties stand in the order of document position. With `Flat` the k best are exact, ties at rank k included;
    FAISS computes a score by one of two routines, depending on the number of queries, and these round
    differently in the last bits. HNSW and IVF can miss documents, and return fewer than k.

    Args:
        width: Dimensions D.
        similarity: `dot`, or `cosine`: documents and queries are normalised to unit length here.
        layout: `Flat()`, `HNSW(...)` or `IVF(...)`.
    """

    def __init__(
        self, width: int, similarity: Similarity = "dot", layout: Flat | HNSW | IVF | None = None
    ) -> None:
        faiss = _import_faiss()
        self.width = width
        self.similarity: Similarity = check_similarity(similarity)
        self.layout = layout or Flat()
        self._ids = DocumentIds()
        if isinstance(self.layout, Flat):
            self._index: Any = faiss.IndexFlatIP(width)
        elif isinstance(self.layout, HNSW):
            self._index = faiss.IndexHNSWFlat(width, self.layout.neighbours, faiss.METRIC_INNER_PRODUCT)
            self._index.hnsw.efConstruction = self.layout.ef_construction
            self._index.hnsw.efSearch = self.layout.ef_search
        else:
            quantizer = faiss.IndexFlatIP(width)
            self._index = faiss.IndexIVFFlat(quantizer, width, self.layout.lists, faiss.METRIC_INNER_PRODUCT)
            self._index.nprobe = self.layout.probes
            self._index.cp.min_points_per_centroid = 1  # else FAISS prints advice to the console

    @classmethod
    def build(
        cls,
        documents: NDArray,
        ids: list[str],
        similarity: Similarity = "dot",
        layout: Flat | HNSW | IVF | None = None,
    ) -> FaissIndex:
        """An index of the documents.

        Args:
            documents: `[N, D]` floats, finite.
            ids: N distinct strings.
            similarity: `dot` or `cosine`.
            layout: `Flat()` where None.

        Returns:
            The index.

        Raises:
            ImportError: FAISS is not installed.
            ValueError: A value that is not finite, another number of ids than documents, an id twice, or
                fewer documents than IVF lists.
        """
        index = cls(dense_width(documents, "documents"), similarity, layout)
        index.add(documents, ids)
        return index

    def add(self, documents: NDArray, ids: list[str]) -> None:
        """Append documents.

        Args:
            documents: `[N, D]` floats, finite.
            ids: N distinct strings that the index does not hold yet.

        Raises:
            ValueError: As for `build`, and another width than the index has.
        """
        vectors = dense_vectors(documents, "documents", self.width, self.similarity)
        self._ids.check(ids, len(vectors))
        if not self._index.is_trained:
            if len(vectors) < self._index.nlist:
                raise ValueError(f"{len(vectors)} documents cannot train {self._index.nlist} IVF lists")
            self._index.train(vectors)
        self._index.add(vectors)
        self._ids.extend(ids)

    def search(self, queries: NDArray, k: SupportsIndex) -> Hits:
        """The k documents of highest similarity to each query.

        Args:
            queries: `[Q, D]` floats, finite.
            k: Hits wanted, at least 1; all documents where it is above their number.

        Returns:
            The hits, scores of any sign.

        Raises:
            ValueError: A value that is not finite, another width than the index has, k below 1.
        """
        wanted = min(check_k(k), len(self))
        vectors = dense_vectors(queries, "queries", self.width, self.similarity)
        positions = np.zeros((len(vectors), wanted), np.int64)
        scores = np.zeros((len(vectors), wanted), np.float32)
        counts = np.zeros(len(vectors), np.int64)
        pending = np.arange(len(vectors)) if wanted else np.arange(0)
        depth = wanted + TIE_MARGIN
        while len(pending):
            depth = min(depth, len(self))
            values, places = self._index.search(vectors[pending], depth)
            cut = (values[:, wanted - 1] == values[:, -1]) & (places[:, -1] >= 0)
            cut &= isinstance(self.layout, Flat) and depth < len(self)
            for row in np.flatnonzero(~cut):
                found = places[row] >= 0
                order = np.lexsort((places[row][found], -values[row][found]))[:wanted]
                query, count = pending[row], len(order)
                positions[query, :count] = places[row][found][order]
                scores[query, :count] = values[row][found][order]
                counts[query] = count
            pending, depth = pending[cut], 4 * depth
        return self._ids.hits(positions, scores, counts)

    def save(self, directory: str | Path) -> None:
        """Write the index: FAISS's file, the ids, and a manifest with checksums.

        Args:
            directory: New or empty.

        Raises:
            FileExistsError: The directory holds something.
        """
        layout = {"name": type(self.layout).__name__, **asdict(self.layout)}
        fields = {"width": self.width, "similarity": self.similarity, "layout": layout}
        with new_directory(directory) as path:
            _import_faiss().write_index(self._index, str(path / "index.faiss"))
            write_ids(path, self._ids)
            write_manifest(path, FORMAT, fields)

    @classmethod
    def load(cls, directory: str | Path, verify: bool = False) -> FaissIndex:
        """Read a saved index into memory.

        Args:
            directory: What `save` wrote.
            verify: Changes nothing here: every file is read, and compared with its checksum, in any case.

        Returns:
            The index.

        Raises:
            FileNotFoundError: No index there, or a file of it is missing.
            ValueError: A file is cut, altered, or of another format.
        """
        fields = read_manifest(directory, FORMAT, verify)
        path = Path(directory)
        try:
            settings = dict(fields["layout"])
            layout = {"Flat": Flat, "HNSW": HNSW, "IVF": IVF}[settings.pop("name")](**settings)
            index = cls(fields["width"], fields["similarity"], layout)
            index._ids = read_ids(path)
            index._index = _import_faiss().read_index(str(path / "index.faiss"))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path} is not a FAISS index of lexforge: {error}") from error
        if index._index.ntotal != len(index) or index._index.d != index.width:
            raise ValueError(f"{path}: {index._index.ntotal} vectors of width {index._index.d} do not fit")
        return index

    def __len__(self) -> int:
        """Number of documents."""
        return len(self._ids)

    @property
    def nbytes(self) -> int:
        """Bytes of FAISS's serialised index."""
        return int(_import_faiss().serialize_index(self._index).nbytes)


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError(f"dense search needs FAISS: pip install faiss-cpu ({error})") from None
    return faiss
