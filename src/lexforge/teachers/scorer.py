"""What scores pairs of texts, and what such models share that encode queries and documents apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lexforge.common.types import TextKind

Pair: TypeAlias = tuple[str, str]
"""A query's text and a document's text."""


@runtime_checkable
class PairScorer(Protocol):
    """Anything that scores pairs of texts.

    `name` is a fingerprint: two teachers that give different scores have different names.
    """

    name: str

    def score(self, pairs: Sequence[Pair]) -> NDArray[np.floating]:
        """Score N pairs: `[N]` float, higher for a more relevant document."""
        ...

    def length(self, pair: Pair) -> int:
        """Return a number by which pairs are sorted, so that those of one batch take equally long."""
        ...


class ApartScorer(ABC):
    """A scorer that encodes queries and documents apart.

    What it encodes of a query is kept in memory, because a query occurs with many documents.
    """

    def __init__(self) -> None:
        self._queries: dict[str, Any] = {}  # text -> what _encode gives of it

    def length(self, pair: Pair) -> int:
        """Return the characters of the document; queries are encoded apart."""
        return len(pair[1])

    def _encoded_queries(self, pairs: Sequence[Pair]) -> list[Any]:
        """Return what `_encode` gives of the query of each pair; each distinct query is encoded once."""
        new = [query for query in dict.fromkeys(query for query, _ in pairs) if query not in self._queries]
        if new:
            self._queries |= dict(zip(new, self._encode(new, "query"), strict=True))
        return [self._queries[query] for query, _ in pairs]

    @abstractmethod
    def _encode(self, texts: list[str], kind: TextKind) -> Iterable[Any]:
        """Encode texts of one kind, at least one."""
