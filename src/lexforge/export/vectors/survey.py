"""What an engine will keep of the vectors: limits checked and recall measured before a file is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lexforge.common.progress import Progress
from lexforge.common.samples import evenly_spaced
from lexforge.corpus.encoded_corpus import EncodedCorpus
from lexforge.export.vectors.base import Survey, VectorTarget
from lexforge.retrieval.vectors import sparse_vectors

K = 10  # the recall is measured over so many documents
SAMPLE = 200  # queries that the recall is measured with, at most
ENOUGH = 0.995  # of two scales that reach this recall, the smaller one is taken: its index is smaller
_ROWS = 4096  # documents scored at once


@dataclass(frozen=True)
class Queries:
    """Encoded queries.

    Args:
        vectors: CSR `[Q, V] float32`.
        ids: The Q ids.
    """

    vectors: sparse.csr_array
    ids: list[str]


def survey_vectors(corpus: EncodedCorpus, target: VectorTarget, queries: Queries | None) -> Survey:
    """Read the corpus twice: for its limits, and for the recall that the engine's rounding leaves.

    Args:
        corpus: The encoded corpus.
        target: What is exported to.
        queries: The queries; None measures with some of the documents.

    Returns:
        The survey.

    Raises:
        ValueError: If the engine cannot hold a document or answer a query, or all documents or all queries
            are empty.
    """
    survey, sample = _limits(corpus, target, queries)
    # For whole numbers, all scales are measured in one pass over the corpus.
    choices = [replace(survey, scale=scale) for scale in target.scales or (1,)]
    recalls = _recalls(corpus, target, sample, choices)
    best = next((i for i, (recall, _) in enumerate(recalls) if recall >= ENOUGH), len(recalls) - 1)
    recall, empty = recalls[best]
    survey = replace(choices[best], recall=recall, empty=empty)
    if queries is None or not target.separator:
        return survey
    rounded = _with(queries.vectors, target.query_weights(queries.vectors.data, survey))
    return replace(survey, left_out=int(np.count_nonzero(rounded.sum(axis=1) == 0)))


def canonical_blocks(corpus: EncodedCorpus) -> Iterator[tuple[sparse.csr_array, list[str]]]:
    """Yield vectors as the engines take them, scaled to unit length if the model is searched by cosine.

    Args:
        corpus: An encoded corpus of sparse vectors.

    Yields:
        CSR `[n, V] float32` in canonical form, and the n ids.

    Raises:
        ValueError: If a block is damaged, or a weight is negative or not finite.
    """
    for vectors, ids in corpus.blocks():
        yield sparse_vectors(vectors, "documents", vectors.shape[1], corpus.manifest.similarity), ids


def _limits(
    corpus: EncodedCorpus, target: VectorTarget, queries: Queries | None
) -> tuple[Survey, sparse.csr_array]:
    """Check every text, and return what was found with the queries to measure with."""
    largest, most = 0.0, 0
    sample = None if queries is None else _spread(queries.vectors)
    if queries is not None:
        if not queries.vectors.nnz:
            raise ValueError(
                f"every one of the {len(queries.ids)} queries is empty; there is nothing to search for"
            )
        target.check_queries(queries.vectors, queries.ids)
    with Progress(len(corpus), "Check") as progress:
        for vectors, ids in canonical_blocks(corpus):
            target.check(vectors, ids)
            counts = np.diff(vectors.indptr)
            largest, most = max(largest, float(vectors.data.max(initial=0))), max(most, int(counts.max()))
            sample = _spread(vectors) if sample is None else sample
            progress.update(len(ids))
    if sample is None or not largest:
        raise ValueError(f"{corpus.directory}: every vector is empty; there is nothing to search for")
    searched_with = f"{sample.shape[0]} {'documents as queries' if queries is None else 'queries'}"
    hardest = 0.0 if queries is None else float(queries.vectors.data.max(initial=0))
    return Survey(largest, hardest, most, searched_with=searched_with), sample


def _spread(vectors: sparse.csr_array) -> sparse.csr_array:
    """Return at most `SAMPLE` rows, evenly spread."""
    return vectors[evenly_spaced(vectors.shape[0], SAMPLE)]


def _recalls(
    corpus: EncodedCorpus, target: VectorTarget, queries: sparse.csr_array, choices: list[Survey]
) -> list[tuple[float, int]]:
    """Return, for each choice, the share of the `K` best documents that the rounded numbers find too, and the
    number of documents without a term whose rounded weight is above 0.

    A document counts as found if its exact score reaches the exact score at rank `K`, so it does not matter
    which of several equal documents a search returns, and its rounded score is above 0.
    """
    rounded_queries = [_with(queries, target.query_weights(queries.data, choice)) for choice in choices]
    best, found = _Best(queries.shape[0]), [_Best(queries.shape[0]) for _ in choices]
    empty = [0] * len(choices)
    with Progress(len(corpus), "Measure recall") as progress:
        for block, _ in canonical_blocks(corpus):
            for start in range(0, block.shape[0], _ROWS):
                part = sparse.csr_array(block[start : start + _ROWS])
                exact = (queries @ part.T).toarray()  # [Q, documents]
                best.add(exact, exact)
                for place, choice in enumerate(choices):
                    documents = _with(part, target.stored_weights(part.data, choice))
                    found[place].add((rounded_queries[place] @ documents.T).toarray(), exact)
                    empty[place] += int(np.count_nonzero(documents.sum(axis=1) == 0))
                progress.update(part.shape[0])
    wanted = np.count_nonzero(best.exact > 0, axis=1)  # [Q]; a document with score 0 is no hit
    last = np.where(best.exact > 0, best.exact, np.inf).min(axis=1, initial=np.inf)[
        :, None
    ]  # [Q, 1] at rank K
    total = int(wanted.sum())
    # Sums of float32 depend on their order, hence the margin.
    # A document whose rounded score is 0 is no hit: an engine returns only those that share a term.
    hits = [np.count_nonzero((kept.scores > 0) & (kept.exact >= last * (1 - 1e-5)), axis=1) for kept in found]
    recalls = [float(np.minimum(count, wanted).sum()) / total if total else 1.0 for count in hits]
    return list(zip(recalls, empty, strict=True))


class _Best:
    """The `K` documents of highest score per query so far, so that memory does not grow with the corpus.

    Args:
        queries: The number Q of queries.
    """

    def __init__(self, queries: int) -> None:
        self.scores = np.zeros((queries, 0), np.float32)  # [Q, K] by which documents are chosen
        self.exact = np.zeros((queries, 0), np.float32)  # [Q, K] exact scores of the same documents

    def add(self, scores: NDArray[np.float32], exact: NDArray[np.float32]) -> None:
        """Take further documents into account.

        Args:
            scores: `[Q, n]`, by which documents are chosen.
            exact: `[Q, n]`, the exact scores.
        """
        self.scores = np.concatenate([self.scores, scores], axis=1)
        self.exact = np.concatenate([self.exact, exact], axis=1)
        if self.scores.shape[1] > K:
            order = np.argpartition(-self.scores, K - 1, axis=1)[:, :K]
            self.scores = np.take_along_axis(self.scores, order, axis=1)
            self.exact = np.take_along_axis(self.exact, order, axis=1)


def _with(vectors: sparse.csr_array, weights: NDArray[np.float32]) -> sparse.csr_array:
    """Return vectors with the same columns and other weights."""
    return sparse.csr_array((weights, vectors.indices, vectors.indptr), shape=vectors.shape)
