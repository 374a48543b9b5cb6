"""Seismic as `bench_index.py` measures it; install it by `pip install pyseismic-lsr`.

Seismic is the approximate index of Bruch, Nardini, Rulli and Venturini, "Efficient inverted indexes for
approximate retrieval over learned sparse representations" (SIGIR 2024). It stores weights in half precision.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy import sparse

# Seismic's own parameters of an index, as its authors recommend them for SPLADE vectors.
POSTINGS_PER_TERM = 3500  # the longest part of a term's list that is kept, on average over the terms
CENTROID_FRACTION = 0.1  # clusters per document of a list
SUMMARY_ENERGY = 0.4  # the share of a cluster's weight that its summary keeps
SMALL_VOCABULARY = 65536  # Seismic's plain classes name a term by 16 bits


class SeismicSearch:
    """A Seismic index over documents that are named by their positions.

    Args:
        documents: CSR `[N, V] float32`, every stored weight > 0 and at most 65,504 (half precision).
        threads: Threads that build the index and search it.
    """

    def __init__(self, documents: sparse.csr_array, threads: int) -> None:
        # imported here, so that the other searches can be measured without it
        import seismic

        suffix = "LV" if documents.shape[1] > SMALL_VOCABULARY else ""
        dataset = getattr(seismic, f"SeismicDataset{suffix}")(dim=documents.shape[1])
        dataset.add_documents_by_id(
            [str(position) for position in range(documents.shape[0])],
            documents.indices.astype(np.int64),
            documents.data,
            documents.indptr.astype(np.int64),
        )
        self._index = getattr(seismic, f"SeismicIndex{suffix}").build_from_dataset(
            dataset,
            n_postings=POSTINGS_PER_TERM,
            centroid_fraction=CENTROID_FRACTION,
            summary_energy=SUMMARY_ENERGY,
            num_threads=threads,
        )
        self._threads = threads
        self._text = seismic.get_seismic_string()  # the numpy type of strings that Seismic takes

    def prepared(self, queries: sparse.csr_array) -> Any:
        """Return queries in the form that Seismic takes, which is no part of its search.

        Args:
            queries: CSR `[Q, V] float32`.
        """
        cuts = queries.indptr[1:-1]
        asked = np.flatnonzero(np.diff(queries.indptr))  # Seismic refuses a query without a term
        return (
            asked.astype(self._text),
            [terms for terms in np.split(queries.indices.astype(self._text), cuts) if len(terms)],
            [weights for weights in np.split(queries.data, cuts) if len(weights)],
        )

    def search(self, queries: Any, k: int, query_terms: int, heap_factor: float) -> Any:
        """Search for about the k best documents of each query.

        Args:
            queries: As `prepared` returns them.
            k: Number of hits wanted per query.
            query_terms: Number of the heaviest terms of a query whose lists are searched; more terms find
                more.
            heap_factor: A cluster is skipped if its summary's score divided by this does not reach the k-th
                hit; a smaller factor finds more.

        Returns:
            Seismic's own answer, for `positions`.
        """
        return self._index.batch_search(
            *queries,
            k=k,
            query_cut=query_terms,
            heap_factor=heap_factor,
            num_threads=self._threads,
        )

    @staticmethod
    def positions(found: Any, queries: int) -> list[list[int]]:
        """Read the positions of each query's hits, best first, from an answer of `search`."""
        rows: list[list[int]] = [[] for _ in range(queries)]
        for hits in filter(None, found):
            # a hit is (name of the query, score, name of the document); the queries come in any order
            rows[int(hits[0][0])] = [
                int(document) for _, _, document in sorted(hits, key=lambda hit: -hit[1])
            ]
        return rows

    @property
    def nbytes(self) -> int:
        """The number of bytes of the file that Seismic writes; it is written only to be measured."""
        with TemporaryDirectory() as folder:
            self._index.save(str(Path(folder) / "terms"))  # Seismic appends `.index.seismic`
            return (Path(folder) / "terms.index.seismic").stat().st_size
