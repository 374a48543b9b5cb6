"""What every index promises: its base class, its result, and the checks that all indexes share."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lexforge.common.similarity import Similarity
from lexforge.common.types import Run
from lexforge.settings import VectorType

TIE_MARGIN = 16  # hits asked for beyond k, so that most ties at rank k are complete at the first attempt

RankedPositions: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float32]]
"""The document positions `[n]` and scores `[n]` that a backend found for one query, by descending score."""


@dataclass(frozen=True)
class Hits:
    """The documents found, one list per query, best first; equal scores stand in the order of the documents.

    Args:
        ids: The document ids of each query. A sparse index returns no document with score 0, so a list can be
            shorter than k; a dense index returns k documents, or all of them if there are fewer.
        scores: The scores of each query, `float32` arrays as long as the lists of ids, in descending order.
    """

    ids: list[list[str]]
    scores: list[NDArray[np.float32]]

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.ids)

    def to_run(self, query_ids: list[str]) -> Run:
        """Convert the hits to a run, `{query id: {document id: score}}`, with strictly descending scores.

        A tool that sorts a run again orders ties by its own rule (trec_eval: by document id, in float32).
        Therefore a score that is not below the one before it becomes the next smaller float32 number.

        Args:
            query_ids: One id per query; no id may occur twice.

        Returns:
            The run; every tool ranks it in this order.

        Raises:
            ValueError: If the number of ids is not the number of queries, or an id occurs twice.
        """
        distinct = len(set(query_ids))
        if len(query_ids) != len(self) or distinct != len(self):
            raise ValueError(
                f"query_ids must hold one distinct id for each of the {len(self)} queries; received "
                f"{len(query_ids)} query ids ({distinct} distinct)"
            )
        run = {}
        for query, documents, scores in zip(query_ids, self.ids, self.scores, strict=True):
            ceiling = np.float32(np.inf)
            strict = []
            for score in scores:
                ceiling = min(score, np.nextafter(ceiling, np.float32(-np.inf)))
                strict.append(float(ceiling))
            run[query] = dict(zip(documents, strict, strict=True))
        return run


def check_k(k: SupportsIndex) -> int:
    """Return `k` as an int.

    Raises:
        TypeError: If `k` is not an integer.
        ValueError: If `k` is below 1.
    """
    number = operator.index(k)
    if number < 1:
        raise ValueError(f"k must be at least 1; received {number}")
    return number


class DocumentIds:
    """The ids of an index's documents, in the order of their positions; every id occurs once.

    Those that `read_ids` reads stay in memory-mapped files: processes share them, and none is read at first.
    """

    def __init__(self) -> None:
        self._text: NDArray[np.uint8] = np.empty(0, np.uint8)  # stored ids in UTF-8, one after the other
        self._ends: NDArray[np.int64] = np.empty(0, np.int64)  # where each of them ends
        self._added: list[str] = []
        self._positions: dict[str, int] | None = None

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._ends) + len(self._added)

    def __getitem__(self, position: int) -> str:
        """Return the id at a position."""
        if position >= len(self._ends):
            return self._added[position - len(self._ends)]
        start = self._ends[position - 1] if position else 0
        return self._text[start : self._ends[position]].tobytes().decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        """Yield all ids, which is faster than one after the other."""
        text, start = self._text.tobytes(), 0
        for end in self._ends.tolist():
            yield text[start:end].decode("utf-8", "surrogatepass")
            start = end
        yield from self._added

    @property
    def positions(self) -> dict[str, int]:
        """The position of each id; reads all ids when it is first asked for."""
        if self._positions is None:
            self._positions = {name: position for position, name in enumerate(self)}
        return self._positions

    def extend(self, names: list[str]) -> None:
        """Append ids that `check_ids` has accepted, once their documents are in the index."""
        first = len(self)
        self.positions.update(zip(names, range(first, first + len(names)), strict=True))
        self._added.extend(names)

    def hits(
        self, positions: NDArray[np.int64], scores: NDArray[np.float32], counts: NDArray[np.int64]
    ) -> Hits:
        """Convert the result of a search by position to hits by id.

        Args:
            positions: Document positions `[Q, K]`, best first, equal scores in ascending position.
            scores: Their scores `[Q, K]`.
            counts: The number of hits in each row `[Q]`; what follows them is ignored.

        Returns:
            The hits by id.
        """
        lengths = counts.tolist()
        rows = [row[:length] for row, length in zip(positions, lengths, strict=True)]
        names: list[str] | dict[int, str] = self._added
        if len(self._ends) and rows:  # a stored id is read once, however many queries found it
            names = {position: self[position] for position in np.unique(np.concatenate(rows)).tolist()}
        return Hits(
            [[names[position] for position in row.tolist()] for row in rows],
            [row[:length] for row, length in zip(scores, lengths, strict=True)],
        )


class Index(ABC):
    """Exact or approximate search for the documents of highest similarity to a query.

    Vectors are scipy CSR matrices for sparse indexes and `float32` arrays for dense ones, `[rows, width]`.
    The similarity is the dot product or the cosine; for the cosine the index normalises documents and queries
    itself.
    """

    holds: ClassVar[tuple[VectorType, ...]]
    """The types of vectors that such an index can hold."""

    similarity: Similarity
    _ids: DocumentIds

    @classmethod
    @abstractmethod
    def build(cls, documents: Any, ids: list[str], *args: Any, **kwargs: Any) -> Index:
        """Return an index of the documents; `ids` holds one distinct id per row."""

    @abstractmethod
    def add(self, documents: Any, ids: list[str]) -> None:
        """Append documents; their positions continue after the last one."""

    @abstractmethod
    def search(self, queries: Any, k: SupportsIndex) -> Hits:
        """Find the `k` best documents of each query, or all documents if there are fewer."""

    @abstractmethod
    def save(self, directory: str | Path) -> None:
        """Write the index to a new or empty directory."""

    @classmethod
    @abstractmethod
    def load(cls, directory: str | Path, verify: bool = False, *args: Any, **kwargs: Any) -> Index:
        """Read what `save` wrote and refuse what is damaged or foreign; `verify` compares every checksum."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The number of bytes of the index, without the document ids."""

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._ids)

    @property
    def ids(self) -> list[str]:
        """The ids of the documents, in the order of their positions."""
        return list(self._ids)


def check_ids(ids: list[str], rows: int, known: Container[str]) -> None:
    """Refuse ids that are not one distinct, new string per document.

    Args:
        ids: The ids of the documents to add.
        rows: The number of documents to add.
        known: The ids that the index holds already.

    Raises:
        ValueError: If the number of ids is not `rows`, or an id is not a string, is empty, occurs twice or is
            known.
    """
    if len(ids) != rows:
        raise ValueError(f"ids must hold one id per document; received {len(ids)} ids for {rows} documents")
    seen: set[str] = set()
    for position, document in enumerate(ids):
        if not isinstance(document, str) or not document:
            raise ValueError(f"ids[{position}] must be a string that is not empty; received {document!r}")
        if document in seen or document in known:
            raise ValueError(f"ids[{position}] is {document!r}, which an earlier document has already")
        seen.add(document)


def complete_ties(
    search: Callable[[NDArray[np.int64], int], Iterable[tuple[int, RankedPositions]]],
    asked: NDArray[np.int64],
    queries: int,
    k: int,
    limit: int,
    exact: bool,
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Search by a backend that breaks ties in its own way, and return the hits in the order of the package.

    A backend that is asked for k hits returns any of the documents whose score equals the k-th one. So it is
    asked for more, until the score after rank k is lower; then the hits are sorted by score and position.

    Args:
        search: Called with rows of queries and a number of hits, it gives each row with what it found.
        asked: The rows of the queries to search for; the other rows get no hit.
        queries: The number Q of queries.
        k: The number of hits wanted per query.
        limit: The most hits that the backend can return.
        exact: Whether the backend finds all documents of a score. An approximate one is asked only once.

    Returns:
        Positions `[Q, k]`, scores `[Q, k]` and the number of hits in each row `[Q]`, as `DocumentIds.hits`
        takes them.
    """
    positions = np.zeros((queries, k), np.int64)
    scores = np.zeros((queries, k), np.float32)
    counts = np.zeros(queries, np.int64)
    depth = k + TIE_MARGIN
    while k and len(asked):
        depth = min(depth, limit)
        cut = []
        for row, (places, values) in search(asked, depth):
            if exact and len(values) == depth < limit and values[k - 1] == values[-1]:
                cut.append(row)  # the tie at rank k may continue beyond what was returned
                continue
            order = np.lexsort((places, -values))[:k]
            counts[row] = len(order)
            positions[row, : len(order)], scores[row, : len(order)] = places[order], values[order]
        asked, depth = np.array(cut, np.int64), 4 * depth
    return positions, scores, counts


def write_ids(directory: Path, names: Iterable[str]) -> None:
    """Write the ids of an index's documents, in the order of their positions, as `read_ids` reads them."""
    texts = [name.encode("utf-8", "surrogatepass") for name in names]
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    np.save(directory / "ids.npy", np.frombuffer(b"".join(texts), np.uint8), allow_pickle=False)
    np.save(directory / "id_ends.npy", ends, allow_pickle=False)


def read_ids(directory: Path) -> DocumentIds:
    """Read what `write_ids` wrote.

    Raises:
        ValueError: If the files do not fit each other.
    """
    text, ends = (np.asarray(np.load(directory / name, mmap_mode="r")) for name in ("ids.npy", "id_ends.npy"))
    if (ends.dtype, ends.ndim, text.dtype, text.ndim) != (np.int64, 1, np.uint8, 1):
        raise ValueError(f"the ids must be bytes and their ends; received {text.dtype} and {ends.dtype}")
    starts = np.append(0, ends)
    if (starts[1:] <= starts[:-1]).any() or starts[-1] != len(text):
        raise ValueError(f"the ids must have a character each and end at {len(text)}, and do not")
    ids = DocumentIds()
    ids._text, ids._ends = text, ends
    return ids
