"""What every index promises: the protocol, its result, and the checks that all of them share."""

from __future__ import annotations

import json
import operator
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from lexforge.common.similarity import Similarity
from lexforge.common.types import Run


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

    def to_run(self, query_ids: list[str]) -> Run:
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
    def build(cls, documents: Any, ids: list[str], *args: Any, **kwargs: Any) -> Index:
        """An index of the documents; `ids` are unique, one a row. Backends take settings of their own."""

    def add(self, documents: Any, ids: list[str]) -> None:
        """Append documents; positions go on from the last one."""

    def search(self, queries: Any, k: int) -> Hits:
        """The `k` best documents of each query, all where there are fewer."""

    def save(self, directory: str | Path) -> None:
        """Write the index to a new or empty directory."""

    @classmethod
    def load(cls, directory: str | Path, verify: bool = False) -> Index:
        """Read what `save` wrote, refusing what is damaged or foreign; `verify` hashes all of it."""

    def __len__(self) -> int:
        """Number of documents."""

    @property
    def nbytes(self) -> int:
        """Bytes of the index, document ids not counted."""


def check_k(k: SupportsIndex) -> int:
    """`k` as an int of at least 1."""
    number = operator.index(k)
    if number < 1:
        raise ValueError(f"k is {number}; it must be at least 1")
    return number


class DocumentIds:
    """The ids of an index's documents, in the order of their positions, each once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._known: set[str] = set()

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        """Whether the index holds the document."""
        return name in self._known

    def check(self, names: list[str], rows: int) -> None:
        """Refuse ids that are not one distinct, new string a document; changes nothing.

        Args:
            names: The ids given.
            rows: Number of documents given.

        Raises:
            ValueError: Another number, an id that is no string or empty, or one that is there already.
        """
        check_ids(names, rows, self._known)

    def extend(self, names: list[str]) -> None:
        """Append ids that `check` accepted, once their documents are in the index."""
        self.names.extend(names)
        self._known.update(names)

    def hits(
        self, positions: NDArray[np.int64], scores: NDArray[np.float32], counts: NDArray[np.int64]
    ) -> Hits:
        """The hits of a search by position.

        Args:
            positions: `[Q, K]` document positions, best first, ties ascending.
            scores: `[Q, K]` their scores.
            counts: `[Q]` how many of each row are hits.

        Returns:
            The hits by id.
        """
        lengths, names = counts.tolist(), self.names
        return Hits(
            [
                [names[position] for position in row[:length].tolist()]
                for row, length in zip(positions, lengths, strict=True)
            ],
            [row[:length] for row, length in zip(scores, lengths, strict=True)],
        )


def check_ids(ids: list[str], rows: int, known: Container[str]) -> None:
    """Refuse ids that are not one distinct, new string a document.

    Args:
        ids: The ids given.
        rows: Number of documents given.
        known: Ids in the index already.
    """
    if len(ids) != rows:
        raise ValueError(f"{len(ids)} ids for {rows} documents")
    seen: set[str] = set()
    for position, document in enumerate(ids):
        if not isinstance(document, str) or not document:
            raise ValueError(f"ids[{position}] is {document!r}; an id is a string that is not empty")
        if document in seen or document in known:
            raise ValueError(f"ids[{position}] is {document!r}, which an earlier document has already")
        seen.add(document)


def write_ids(directory: Path, ids: DocumentIds) -> None:
    """Write the ids of an index's documents, in the order of their positions."""
    (directory / "ids.json").write_text(json.dumps(ids.names), encoding="utf-8")


def read_ids(directory: Path) -> DocumentIds:
    """Read what `write_ids` wrote.

    Raises:
        ValueError: The file holds something else than distinct strings.
    """
    names = json.loads((directory / "ids.json").read_text(encoding="utf-8"))
    if not isinstance(names, list):
        raise ValueError(f"ids.json holds a {type(names).__name__}, not a list of ids")
    ids = DocumentIds()
    ids.check(names, len(names))
    ids.extend(names)
    return ids
