"""Exact sparse search: an inverted index in memory or memory-mapped from disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lexforge.kernels.postings import Postings, build_postings, join_postings, top_k
from lexforge.retrieval.base import Hits, Similarity, check_ids, check_k, check_similarity
from lexforge.retrieval.storage import new_directory, read_manifest, write_manifest

FORMAT = "lexforge-inverted-index"
Matrix = sparse.csr_matrix | sparse.csr_array


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
        self._ids: list[str] = []
        self._known: set[str] = set()
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
        index = cls(_checked_width(documents, "documents"), similarity)
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
        vectors = self._canonical(documents, "documents")
        check_ids(ids, vectors.shape[0], self._known)
        self._parts.append(build_postings(vectors))
        self._ids.extend(ids)
        self._known.update(ids)

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
        vectors = self._canonical(queries, "queries")
        positions, scores, counts = top_k(vectors, self._postings(), wanted)
        ids = self._ids
        rows = zip(positions, counts.tolist(), strict=True)
        return Hits(
            [[ids[position] for position in row[:count].tolist()] for row, count in rows],
            [row[:count] for row, count in zip(scores, counts.tolist(), strict=True)],
        )

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
        (path / "ids.json").write_text(json.dumps(self._ids, ensure_ascii=False), encoding="utf-8")
        write_manifest(path, FORMAT, {"num_terms": self.num_terms, "similarity": self.similarity})

    @classmethod
    def load(cls, directory: str | Path) -> InvertedIndex:
        """Read a saved index; the arrays are memory-mapped, so it can be larger than memory.

        Args:
            directory: What `save` wrote.

        Returns:
            The index.

        Raises:
            FileNotFoundError: No index there, or a file of it is missing.
            ValueError: A file is cut, altered, or of another format.
        """
        manifest = read_manifest(directory, FORMAT)
        path = Path(directory)
        try:
            index = cls(manifest["num_terms"], manifest["similarity"])
            index._ids = json.loads((path / "ids.json").read_text(encoding="utf-8"))
            index._known = set(index._ids)
            files = [np.load(path / f"{name}.npy", mmap_mode="r") for name in Postings._fields]
            postings = Postings(*(np.asarray(file) for file in files))
            _check_structure(postings, index.num_terms, len(index._known), len(index._ids))
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

    def _canonical(self, matrix: Matrix, what: str) -> Matrix:
        """The matrix as sorted float32 CSR without duplicates or zeros, normalised for cosine."""
        width = _checked_width(matrix, what)
        if width != self.num_terms:
            raise ValueError(f"{what} have {width} columns; the index has {self.num_terms}")
        matrix.check_format(full_check=True)
        if matrix.dtype.kind not in "fiu":
            raise ValueError(f"{what} have dtype {matrix.dtype}; allowed are real numbers")
        _check_weights(matrix, matrix.data, what)
        vectors = sparse.csr_array(matrix)
        if vectors.dtype != np.float32:
            with np.errstate(over="ignore"):  # infinity is refused just below
                vectors = vectors.astype(np.float32)
        if not vectors.has_canonical_format:
            vectors = vectors.copy()
            vectors.sum_duplicates()
        _check_weights(vectors, vectors.data, what)
        if self.similarity == "cosine":
            norms = np.sqrt(np.asarray(vectors.astype(np.float64).power(2).sum(axis=1)))
            scale = np.repeat(np.where(norms > 0, norms, 1.0), np.diff(vectors.indptr))
            data = (vectors.data / scale).astype(np.float32)
            vectors = sparse.csr_array((data, vectors.indices, vectors.indptr), shape=vectors.shape)
        if not vectors.data.all():
            vectors = vectors.copy()
            vectors.eliminate_zeros()
        return vectors


def _checked_width(matrix: Matrix, what: str) -> int:
    if not sparse.issparse(matrix) or matrix.format != "csr" or matrix.ndim != 2:
        raise TypeError(f"{what} must be a 2-dimensional scipy CSR matrix, not {type(matrix).__name__}")
    return matrix.shape[1]


def _check_weights(matrix: Matrix, weights: NDArray, what: str) -> None:
    """Refuse negative and non-finite weights, in the dtype given and in float32."""
    wrong = np.flatnonzero(~(weights >= 0) | ~np.isfinite(weights))
    if len(wrong):
        row = int(np.searchsorted(matrix.indptr, wrong[0], side="right")) - 1
        raise ValueError(
            f"{what} row {row}, column {matrix.indices[wrong[0]]}: weight {weights[wrong[0]]}; "
            "weights must be finite and >= 0"
        )


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
