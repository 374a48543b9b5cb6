"""What several subpackages exchange: runs, judgements, column names, embeddings of texts, errors of data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lexforge.common.similarity import Similarity

Run: TypeAlias = dict[str, dict[str, float]]
"""What a search found: query id -> document id -> score."""

Qrels: TypeAlias = dict[str, dict[str, int]]
"""Relevance judgements: query id -> document id -> grade."""


TextKind: TypeAlias = Literal["query", "document"]
"""What a text is to a search; models may encode the two kinds differently."""

TEXT_KINDS: tuple[TextKind, ...] = ("query", "document")

# The usual names of the columns of rows, which reading and training recognise alike.
QUERY_COLUMNS = ("anchor", "query", "question")
POSITIVE_COLUMNS = ("positive", "positives", "positive_passages", "pos", "document", "passage", "answer")
NEGATIVE_COLUMN = re.compile(r"(hard_)?(negs?(_?\d+)?|negative(?!.*_(id|label|rank|score|title)s?$).*)")
"""`neg`, `neg_1` and whatever begins with `negative`, such as `negative_passage`, but for what is no text."""


class Embeddings(Protocol):
    """Embeddings that are looked up by text and kind, such as a `lexforge.teachers.TeacherCache`.

    `similarity` says how they are compared.
    """

    similarity: Similarity

    def lookup(self, texts: Sequence[str], kind: TextKind) -> NDArray[np.floating]:
        """Return the embeddings of texts: `[N, D]` float, in the order of `texts`."""
        ...


def check_texts(texts: object) -> None:
    """Refuse a single text in the place of a list of texts, because its characters would be taken for texts.

    Raises:
        TypeError: If it is a string.
    """
    if isinstance(texts, str):
        raise TypeError(f"expected a list of texts; received the single text {texts!r}")


def joined(title: str, text: str) -> str:
    """Return title and text joined by a space, as BEIR searches them, without white space at the ends."""
    return f"{title} {text}".strip()


@dataclass(frozen=True)
class Passage:
    """A text that is searched: a document, or a part of a long one.

    Args:
        title: The title of its document; it may be blank.
        text: The text, without the title.
        document: The id of the document that it is a part of.
    """

    title: str
    text: str
    document: str

    @property
    def joined(self) -> str:
        """What an encoder reads: title and text."""
        return joined(self.title, self.text)


class DataError(ValueError):
    """Raised for data that cannot be used; the message names the source and the line or row."""
