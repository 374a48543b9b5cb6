"""What every target of an export of vectors says: its files, its limits, and what its engine keeps."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

NAME = "lexforge"  # the name of the index, collection or table in every file
FIELD = "vector"  # the name of the field that holds a vector
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Row:
    """One document or query as it is written.

    Args:
        position: Number of the text, from 0.
        id: Id of the text.
        columns: Numbers of its terms, ascending.
        weights: The weight of each term, as a decimal number that is read back to the same float32.
    """

    position: int
    id: str
    columns: Sequence[int]
    weights: Sequence[str]


@dataclass(frozen=True)
class Survey:
    """What is known of the vectors before a file is written.

    Args:
        largest_document: The largest weight of a document.
        largest_query: The largest weight of a query; 0 if no queries are exported.
        most_terms: The most terms of a document.
        empty: Number of documents without a term whose weight is kept; no engine finds them.
        scale: What weights are multiplied by before they are rounded to whole numbers; 1 for an engine that
            takes other numbers.
        recall: Share of the 10 best documents of exact search that a search over the numbers which the engine
            keeps finds too.
        searched_with: What was searched for to measure the recall.
        left_out: Number of queries that are not written, because all their weights round to 0.
    """

    largest_document: float
    largest_query: float
    most_terms: int
    empty: int = 0
    scale: int = 1
    recall: float = 1.0
    searched_with: str = ""
    left_out: int = 0


class VectorTarget(ABC):
    """How vectors are written for one engine.

    Args:
        terms: The name of each column; an engine that takes numbers does not read them.
        width: Number of columns of the vectors.

    Raises:
        ValueError: If the engine needs names and there is not one for each column, or two columns would get
            one name.
    """

    suffix: ClassVar[str]  # of the files of documents
    queries_file: ClassVar[str]
    shard_bytes: ClassVar[int]  # the most bytes of a file, which the engine takes in one request
    named: ClassVar[bool] = True  # whether the engine takes the names of terms, and not their numbers
    scales: ClassVar[tuple[int, ...]] = ()  # for an engine of whole numbers: what weights may be scaled by
    separator: ClassVar[str] = ""  # in a line of queries, between the id and the terms; needs a term
    commands: ClassVar[str]  # of a shell, which load the files and ask the example query

    def __init__(self, terms: Sequence[str] | None, width: int) -> None:
        self.width = width
        if not self.named:
            terms = [str(number) for number in range(width)]
        if terms is None or len(terms) != width:
            received = "none" if terms is None else len(terms)
            raise ValueError(f"{type(self).__name__} needs the names of {width} terms; received {received}")
        # A name that the engine cannot hold becomes the number of the column, in documents and queries alike.
        self.terms = [f"[{i}]" if not term or self.refuses(term) else term for i, term in enumerate(terms)]
        if len(set(self.terms)) != len(self.terms):
            twice = Counter(self.terms).most_common(1)[0][0]
            raise ValueError(f"the names of two terms must differ; received {twice!r} twice")
        self._quoted = [quoted(term) for term in self.terms]

    def refuses(self, term: str) -> bool:
        """Return whether the engine cannot hold a term of this name."""
        return False

    def check(self, vectors: sparse.csr_array, ids: Sequence[str]) -> None:  # noqa: B027 - most refuse none
        """Refuse documents that the engine cannot hold.

        Args:
            vectors: CSR `[n, V] float32`, canonical.
            ids: The n ids.

        Raises:
            ValueError: If there is one; the message names it.
        """

    def check_queries(self, vectors: sparse.csr_array, ids: Sequence[str]) -> None:
        """Refuse queries that the engine cannot answer.

        Raises:
            ValueError: If there is one; the message names it.
        """
        for id in ids if self.separator else ():
            if self.separator in id or id.splitlines() != [id]:
                raise ValueError(
                    f"{type(self).__name__} reads the id of a query up to the first {self.separator!r} of "
                    f"its line, so it must hold neither that nor a line break; received {id!r}"
                )

    def stored_weights(self, weights: NDArray[np.float32], survey: Survey) -> NDArray[np.float32]:
        """Return what the engine keeps of the weights of documents, in the engine's own unit."""
        return whole_numbers(weights, survey.scale) if self.scales else weights

    def query_weights(self, weights: NDArray[np.float32], survey: Survey) -> NDArray[np.float32]:
        """Return what the engine keeps of the weights of queries, in the engine's own unit."""
        return whole_numbers(weights, survey.scale) if self.scales else weights

    def shard(self, documents: Sequence[bytes]) -> bytes:
        """Return the bytes of a file of documents.

        Args:
            documents: At least one document, as `document` returns it.
        """
        return b"\n".join(documents) + b"\n"

    def finish(self, folder: Path, shards: Sequence[str]) -> list[str]:
        """Make what can only be made of all documents, and return the names of the files that hold them."""
        return list(shards)

    @abstractmethod
    def document(self, row: Row) -> bytes:
        """Return a document as it stands between others in a file."""

    def query(self, row: Row) -> str:
        """Return a query as a line of the file of queries.

        By default it is the id, and the name of each term as often as its whole weight says.
        """
        pairs = zip(row.columns, row.weights, strict=True)
        names = " ".join(name for column, weight in pairs for name in [self.terms[column]] * int(weight))
        return f"{row.id}{self.separator}{names}"

    def files(self, survey: Survey, example: Row) -> dict[str, str]:
        """Return name and text of the other files: an example query, and a mapping or schema if any."""
        return {self.queries_file.replace("queries", "example-query"): self.query(example) + "\n"}

    @abstractmethod
    def limits(self, survey: Survey) -> list[str]:
        """Return sentences on what the engine does to the vectors and what it refuses."""

    def named_weights(self, row: Row) -> str:
        """Return the terms, or their numbers, and the weights of a text as a JSON object."""
        pairs = zip(row.columns, row.weights, strict=True)
        return "{" + ",".join(f"{self._quoted[column]}:{weight}" for column, weight in pairs) + "}"


def experimental(engine: str) -> str:
    """Return the sentence of a target whose files no running engine has read."""
    return (
        f"Experimental: these files were compared with the documentation of {engine}, and were never loaded "
        "into a running one."
    )


def quoted(text: str) -> str:
    """Return a text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def scaled(survey: Survey) -> str:
    """Return the sentence that says how weights became whole numbers."""
    return (
        f"Weights are whole numbers: each was multiplied by {survey.scale} and rounded; a term whose weight "
        "rounds to 0 is gone."
    )


def pretty(content: object) -> str:
    """Return a JSON object over several lines, as the text of a file."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def whole_numbers(weights: NDArray[np.float32], scale: int) -> NDArray[np.float32]:
    """Return weights times the scale, rounded to whole numbers; a weight below half of one becomes 0."""
    return np.rint(weights * np.float32(scale))


def cut_bits(weights: NDArray[np.float32], dropped: int) -> NDArray[np.float32]:
    """Return weights without the last bits of their fraction, as a cast that cuts instead of rounding.

    Args:
        weights: Array `float32`.
        dropped: Number of bits set to 0, of the 23 that float32 stores.

    Returns:
        Array `float32` with 24 - `dropped` significant bits.
    """
    mask = np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
    return (np.ascontiguousarray(weights, np.float32).view(np.uint32) & mask).view(np.float32)
