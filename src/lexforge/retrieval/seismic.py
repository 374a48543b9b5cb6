"""Approximate sparse search through Seismic (pyseismic-lsr, the extra `seismic`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, SupportsIndex

import numba
import numpy as np
from scipy import sparse

from lexforge.common.files import new_directory
from lexforge.common.manifest import read_manifest, write_manifest
from lexforge.common.similarity import Similarity, check_similarity
from lexforge.retrieval.base import DocumentIds, Hits, check_k, read_ids, write_ids
from lexforge.retrieval.vectors import Matrix, sparse_vectors, sparse_width

FORMAT = "lexforge-seismic-index"
SEISMIC_FILE = "terms.index.seismic"  # Seismic appends what follows the stem
SMALL_VOCABULARY = 65536  # terms that Seismic's plain classes name by 16 bits
LARGEST_WEIGHT = float(np.finfo(np.float16).max)  # it stores weights in half precision


@dataclass(frozen=True)
class SeismicSettings:
    """How Seismic builds and searches.

    Args:
        postings_per_term: Longest part of a term's list that is kept, on average over the terms.
        centroid_fraction: Clusters of a list by its documents.
        summary_energy: Share of a cluster's weight that its summary keeps.
        query_terms: Heaviest terms of a query whose lists are looked into; more is more exact.
        heap_factor: A cluster is skipped where its summary's score times 1 / `heap_factor` does not reach the
            k-th hit; less is more exact.
    """

    postings_per_term: int = 3500
    centroid_fraction: float = 0.1
    summary_energy: float = 0.4
    query_terms: int = 10
    heap_factor: float = 0.7


class SeismicIndex:
    """Top-k over sparse non-negative vectors, approximate and fast (Bruch, Nardini, Rulli and Venturini,
    "Efficient inverted indexes for approximate retrieval over learned sparse representations", SIGIR 2024).

    It misses documents, and scores in half precision. Documents with score 0 are no hits; the hits of equal
    score stand in the order of document position, but which of them are found at rank k is open. Seismic
    cannot be added to: the documents are kept, and the index is built at the first search after an addition.

    Args:
        num_terms: Width V of the vectors.
        similarity: `dot`, or `cosine`: documents and queries are normalised to unit length here.
        settings: How to build and to search.

    Raises:
        ImportError: The extra is not installed.
    """

    def __init__(
        self, num_terms: int, similarity: Similarity = "dot", settings: SeismicSettings | None = None
    ) -> None:
        _import_seismic()
        if num_terms < 1:
            raise ValueError(f"num_terms is {num_terms}; it must be at least 1")
        self.num_terms = num_terms
        self.similarity: Similarity = check_similarity(similarity)
        self.settings = settings or SeismicSettings()
        self._ids = DocumentIds()
        self._documents = sparse.csr_array(np.zeros((0, num_terms), np.float32))
        self._index: Any = None

    @classmethod
    def build(
        cls,
        documents: Matrix,
        ids: list[str],
        similarity: Similarity = "dot",
        settings: SeismicSettings | None = None,
    ) -> SeismicIndex:
        """An index of the documents.

        Args:
            documents: CSR `[N, V]`, >= 0, at most 65,504.
            ids: N distinct strings.
            similarity: `dot` or `cosine`.
            settings: How to build and to search.

        Returns:
            The index.

        Raises:
            ImportError: The extra is not installed.
            TypeError: `documents` is not a scipy CSR matrix.
            ValueError: A weight outside its range, another number of ids than documents, an id twice.
        """
        index = cls(sparse_width(documents, "documents"), similarity, settings)
        index.add(documents, ids)
        index._built()
        return index

    def add(self, documents: Matrix, ids: list[str]) -> None:
        """Append documents; the next search builds the index anew.

        Args:
            documents: CSR `[N, V]`, >= 0, at most 65,504.
            ids: N distinct strings that the index does not hold yet.

        Raises:
            TypeError: `documents` is not a scipy CSR matrix.
            ValueError: As for `build`, and another width than the index has.
        """
        vectors = sparse_vectors(documents, "documents", self.num_terms, self.similarity)
        if vectors.data.max(initial=0) > LARGEST_WEIGHT:
            raise ValueError(f"a weight of {vectors.data.max()}; Seismic's half precision ends at 65504")
        self._ids.check(ids, vectors.shape[0])
        self._documents = sparse.csr_array(sparse.vstack([self._documents, vectors], format="csr"))
        self._ids.extend(ids)
        self._index = None

    def search(self, queries: Matrix, k: SupportsIndex) -> Hits:
        """About the k documents of highest score for each query, on as many threads as numba has.

        Args:
            queries: CSR `[Q, V]`, finite and >= 0.
            k: Hits wanted, at least 1; at most all documents are found.

        Returns:
            The hits; an empty row for a query without a weight.

        Raises:
            TypeError: `queries` is not a scipy CSR matrix.
            ValueError: A negative or non-finite weight, another width than the index has, k below 1.
        """
        wanted = min(check_k(k), len(self))
        vectors = sparse_vectors(queries, "queries", self.num_terms, self.similarity)
        rows = vectors.shape[0]
        positions = np.zeros((rows, wanted), np.int64)
        scores = np.zeros((rows, wanted), np.float32)
        counts = np.zeros(rows, np.int64)
        asked = np.flatnonzero(np.diff(vectors.indptr))
        if len(asked) and self._documents.nnz:
            text = _import_seismic().get_seismic_string()
            cuts = vectors.indptr[1:-1]
            found = self._built().batch_search(
                asked.astype(text),
                [part for part in np.split(vectors.indices.astype(text), cuts) if len(part)],
                [part for part in np.split(vectors.data, cuts) if len(part)],
                k=wanted,
                query_cut=self.settings.query_terms,
                heap_factor=self.settings.heap_factor,
                num_threads=numba.get_num_threads(),
            )
            for hits in filter(None, found):
                row = int(hits[0][0])  # named, for Seismic does not promise the order of the queries
                places = np.array([int(hit[2]) for hit in hits], np.int64)
                values = np.array([hit[1] for hit in hits], np.float32)
                order = np.lexsort((places, -values))[: np.count_nonzero(values > 0)]
                counts[row] = len(order)
                positions[row, : len(order)], scores[row, : len(order)] = places[order], values[order]
        return self._ids.hits(positions, scores, counts)

    def save(self, directory: str | Path) -> None:
        """Write the index: Seismic's file, the documents, the ids, and a manifest with checksums.

        Args:
            directory: New or empty.

        Raises:
            FileExistsError: The directory holds something.
        """
        fields = {"num_terms": self.num_terms, "similarity": self.similarity}
        with new_directory(directory) as path:
            sparse.save_npz(path / "documents.npz", self._documents, compressed=False)
            write_ids(path, self._ids)
            if self._documents.nnz:
                self._built().save(str(path / "terms"))
            write_manifest(path, FORMAT, {**fields, "settings": asdict(self.settings)})

    @classmethod
    def load(cls, directory: str | Path, verify: bool = False) -> SeismicIndex:
        """Read a saved index into memory.

        Args:
            directory: What `save` wrote.
            verify: Changes nothing here: every file is read, and compared with its checksum, in any case.

        Returns:
            The index.

        Raises:
            ImportError: The extra is not installed.
            FileNotFoundError: No index there, or a file of it is missing.
            ValueError: A file is cut, altered, or of another format.
        """
        fields = read_manifest(directory, FORMAT, verify)
        path = Path(directory)
        try:
            settings = SeismicSettings(**fields["settings"])
            index = cls(fields["num_terms"], fields["similarity"], settings)
            index._ids = read_ids(path)
            index._documents = sparse.csr_array(sparse.load_npz(path / "documents.npz"))
            index._documents.check_format(full_check=True)
            if index._documents.shape != (len(index), index.num_terms):
                raise ValueError(f"documents of shape {index._documents.shape} for {len(index)} ids")
            if index._documents.nnz:
                index._index = index._class("Index").load(str(path / SEISMIC_FILE))
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise ValueError(f"{path} is not a Seismic index of lexforge: {error}") from error
        return index

    def __len__(self) -> int:
        """Number of documents."""
        return len(self._ids)

    @property
    def nbytes(self) -> int:
        """Bytes of Seismic's file, written to be measured, and of the documents kept."""
        documents = self._documents.data.nbytes + self._documents.indices.nbytes
        if not self._documents.nnz:
            return documents
        with TemporaryDirectory() as folder:
            self._built().save(str(Path(folder) / "terms"))
            return documents + (Path(folder) / SEISMIC_FILE).stat().st_size

    def _built(self) -> Any:
        """Seismic's index of all documents, which are named by position."""
        if self._index is None and self._documents.nnz:
            dataset = self._class("Dataset")(dim=self.num_terms)
            documents = self._documents
            dataset.add_documents_by_id(
                [str(position) for position in range(len(self))],
                documents.indices.astype(np.int64),
                documents.data,
                documents.indptr.astype(np.int64),
            )
            self._index = self._class("Index").build_from_dataset(
                dataset,
                n_postings=self.settings.postings_per_term,
                centroid_fraction=self.settings.centroid_fraction,
                summary_energy=self.settings.summary_energy,
                num_threads=numba.get_num_threads(),
            )
        return self._index

    def _class(self, name: str) -> Any:
        """Seismic's class for this vocabulary."""
        suffix = "LV" if self.num_terms > SMALL_VOCABULARY else ""
        return getattr(_import_seismic(), f"Seismic{name}{suffix}")


def _import_seismic() -> Any:
    try:
        import seismic
    except ImportError as error:
        raise ImportError(
            f"SeismicIndex needs the extra 'seismic': pip install 'lexforge[seismic]' ({error})"
        ) from None
    return seismic
