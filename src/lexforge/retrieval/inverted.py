"""Exact sparse search: an inverted index in memory or memory-mapped from disk."""

from __future__ import annotations

from pathlib import Path
from typing import SupportsIndex

import numpy as np
from scipy import sparse

from lexforge.kernels.postings import Postings, build_postings, join_postings, top_k
from lexforge.retrieval.base import DocumentIds, Hits, Similarity, check_k, check_similarity
from lexforge.retrieval.storage import new_directory, read_ids, read_manifest, write_ids, write_manifest
from lexforge.retrieval.vectors import Matrix, sparse_vectors, sparse_width

FORMAT = "lexforge-inverted-index"


class InvertedIndex:
    """Exact top-k over sparse non-negative vectors, float32, on numba's threads.

    Documents with score 0 are no hits. Ties stand in the order of document position. Sources: term-at-a-time
    evaluation over an inverted file (Zobel and Moffat, "Inverted files for text search engines", 2006).

    Args:
        num_terms: Width V of the vectors.
        similarity: `dot`, or `cosine`: documents and queries are normalised to unit length here.
    """

    def __init__(self, num_terms: int, similarity: Similarity = "dot") -> None:
        if num_terms < 1:
            raise ValueError(f"num_terms is {num_terms}; it must be at least 1")
        self.num_terms = num_terms
        self.similarity: Similarity = check_similarity(similarity)
        self._ids = DocumentIds()
        self._parts = [build_postings(sparse.csr_array(np.zeros((0, num_terms), np.float32)))]

    @classmethod
    def build(cls, documents: Matrix, ids: list[str], similarity: Similarity = "dot") -> InvertedIndex:
        """An index of the documents.

        Args:
            documents: CSR `[N, V]`, finite and >= 0.
            ids: N distinct strings.
            similarity: `dot` or `cosine`.

        Returns:
            The index.

        Raises:
            TypeError: `documents` is not a scipy CSR matrix.
            ValueError: A negative or non-finite weight, another number of ids than documents, an id twice.
        """
        index = cls(sparse_width(documents, "documents"), similarity)
        index.add(documents, ids)
        return index

    def add(self, documents: Matrix, ids: list[str]) -> None:
        """Append documents; blocks of tens of thousands keep the index as fast as one build.

        Args:
            documents: CSR `[N, V]`, finite and >= 0.
            ids: N distinct strings that the index does not hold yet.

        Raises:
            TypeError: `documents` is not a scipy CSR matrix.
            ValueError: As for `build`, and another width than the index has.
        """
        vectors = sparse_vectors(documents, "documents", self.num_terms, self.similarity)
        self._ids.check(ids, vectors.shape[0])
        self._parts.append(build_postings(vectors))
        self._ids.extend(ids)

    def search(self, queries: Matrix, k: SupportsIndex) -> Hits:
        """The k documents of highest score for each query.

        Args:
            queries: CSR `[Q, V]`, finite and >= 0.
            k: Hits wanted, at least 1; all documents where it is above their number.

        Returns:
            The hits; an empty row for a query without a weight.

        Raises:
            TypeError: `queries` is not a scipy CSR matrix.
            ValueError: A negative or non-finite weight, another width than the index has, k below 1.
        """
        wanted = check_k(k)
        vectors = sparse_vectors(queries, "queries", self.num_terms, self.similarity)
        positions, scores, counts = top_k(vectors, self._postings(), wanted)
        return self._ids.hits(positions, scores, counts)

    def save(self, directory: str | Path) -> None:
        """Write the index: four arrays, the ids, and a manifest with checksums.

        Args:
            directory: New or empty.

        Raises:
            FileExistsError: The directory holds something.
        """
        path = new_directory(directory)
        for name, array in self._postings()._asdict().items():
            np.save(path / f"{name}.npy", array, allow_pickle=False)
        write_ids(path, self._ids)
        write_manifest(path, FORMAT, {"num_terms": self.num_terms, "similarity": self.similarity})

    @classmethod
    def load(cls, directory: str | Path, verify: bool = False) -> InvertedIndex:
        """Read a saved index; the arrays are memory-mapped, so it can be larger than memory.

        Args:
            directory: What `save` wrote.
            verify: Compare every file with its checksum, also those that were not written since.

        Returns:
            The index.

        Raises:
            FileNotFoundError: No index there, or a file of it is missing.
            ValueError: A file is cut, altered, or of another format.
        """
        manifest = read_manifest(directory, FORMAT, verify).fields
        path = Path(directory)
        try:
            index = cls(manifest["num_terms"], manifest["similarity"])
            index._ids = read_ids(path)
            files = [np.load(path / f"{name}.npy", mmap_mode="r") for name in Postings._fields]
            postings = Postings(*(np.asarray(file) for file in files))
            _check_structure(postings, index.num_terms, len(index), len(index))
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise ValueError(f"{path} is not an inverted index of lexforge: {error}") from error
        index._parts = [postings]
        return index

    def __len__(self) -> int:
        """Number of documents."""
        return len(self._ids)

    @property
    def nbytes(self) -> int:
        """Bytes of the posting arrays."""
        return sum(array.nbytes for part in self._parts for array in part)

    def _postings(self) -> Postings:
        """All documents as one set of postings."""
        self._parts = [join_postings(self._parts)]
        return self._parts[0]


def _check_structure(postings: Postings, num_terms: int, distinct_ids: int, ids: int) -> None:
    """Refuse arrays that the compiled search could not read safely."""
    places, weights, offsets, starts = postings
    kinds = [(array.dtype.str, array.ndim) for array in postings]
    if kinds != [("<u2", 1), ("<f4", 1), ("<i8", 2), ("<i8", 1)]:
        raise ValueError(f"arrays of the kinds {kinds}")
    sizes = np.diff(starts)
    if offsets.shape != (len(sizes), num_terms + 1) or starts[0] != 0 or distinct_ids != ids:
        raise ValueError(
            f"offsets of shape {offsets.shape} for {len(sizes)} blocks, {num_terms} terms, {ids} ids"
        )
    if starts[-1] != ids or (len(sizes) and (sizes.min() < 1 or sizes.max() > 65536)):
        raise ValueError(f"blocks of {sizes.tolist()[:5]}... documents for {ids} ids")
    flat = offsets.reshape(-1)
    if len(flat) and (flat[0] != 0 or flat[-1] != len(places) or (np.diff(flat) < 0).any()):
        raise ValueError("offsets do not ascend from 0 to the number of postings")
    if len(places) != len(weights) or (len(places) and len(sizes) and int(places.max()) >= sizes.max()):
        raise ValueError("a posting names a place outside its block")
