"""What every index promises: the protocol, its result, and the checks that all of them share."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, SupportsIndex, cast

import numpy as np
from numpy.typing import NDArray

Similarity = Literal["dot", "cosine"]


@dataclass(frozen=True)
class Hits:
    """The documents found, one entry a query, best first; ties stand in the order of document position.

    Args:
        ids: Document ids. A sparse index returns no document with score 0, so a row can be shorter than k;
            a dense index returns k documents, or all where there are fewer.
        scores: `float32` arrays of the same lengths, descending.
    """

    ids: list[list[str]]
    scores: list[NDArray[np.float32]]

    def __len__(self) -> int:
        """Number of queries."""
        return len(self.ids)

    def to_run(self, query_ids: list[str]) -> dict[str, dict[str, float]]:
        """The hits as a run, `{query id: {document id: score}}`, with strictly descending scores.

        A tool that sorts a run again has its own order for ties (trec_eval: by document id, in float32). So a
        score that does not lie below the one before it is set to the next float32 below that one.

        Args:
            query_ids: One id a query, unique.

        Returns:
            The run; every tool ranks it in this order.

        Raises:
            ValueError: Another number of ids than of queries, or an id twice.
        """
        distinct = len(set(query_ids))
        if len(query_ids) != len(self) or distinct != len(self):
            raise ValueError(f"{len(query_ids)} query ids ({distinct} distinct) for {len(self)} queries")
        run = {}
        for query, documents, scores in zip(query_ids, self.ids, self.scores, strict=True):
            ceiling = np.float32(np.inf)
            strict = []
            for score in scores:
                ceiling = min(score, np.nextafter(ceiling, np.float32(-np.inf)))
                strict.append(float(ceiling))
            run[query] = dict(zip(documents, strict, strict=True))
        return run


class Index(Protocol):
    """Exact or approximate search for the documents of highest similarity to a query.

    Vectors are scipy CSR matrices for sparse indexes, `float32` arrays for dense ones, `[rows, width]`. The
    similarity is the dot product, or cosine: then the index normalises documents and queries itself.
    """

    similarity: Similarity

    @classmethod
    def build(cls, documents: Any, ids: list[str]) -> Index:
        """An index of the documents; `ids` are unique, one a row."""

    def add(self, documents: Any, ids: list[str]) -> None:
        """Append documents; positions go on from the last one."""

    def search(self, queries: Any, k: int) -> Hits:
        """The `k` best documents of each query, all where there are fewer."""

    def save(self, directory: str | Path) -> None:
        """Write the index to a new or empty directory."""

    @classmethod
    def load(cls, directory: str | Path) -> Index:
        """Read what `save` wrote, refusing what is damaged or foreign."""

    def __len__(self) -> int:
        """Number of documents."""

    @property
    def nbytes(self) -> int:
        """Bytes of the index, document ids not counted."""


def check_similarity(similarity: str) -> Similarity:
    """The similarity, if an index offers it."""
    if similarity not in ("dot", "cosine"):
        raise ValueError(f"similarity is {similarity!r}; an index offers 'dot' and 'cosine'")
    return cast(Similarity, similarity)


def check_k(k: SupportsIndex) -> int:
    """`k` as an int of at least 1."""
    number = operator.index(k)
    if number < 1:
        raise ValueError(f"k is {number}; it must be at least 1")
    return number


def check_ids(ids: list[str], rows: int, known: set[str]) -> None:
    """Refuse ids that are not one distinct, new string a document.

    Args:
        ids: The ids given.
        rows: Number of documents given.
        known: Ids in the index already.
    """
    if len(ids) != rows:
        raise ValueError(f"{len(ids)} ids for {rows} documents")
    seen = set(known)
    for position, document in enumerate(ids):
        if not isinstance(document, str) or not document:
            raise ValueError(f"ids[{position}] is {document!r}; an id is a string that is not empty")
        if document in seen:
            raise ValueError(f"ids[{position}] is {document!r}, which an earlier document has already")
        seen.add(document)
