"""A retrieval data set in memory, and the checks that every loader runs while it fills one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lexforge.common.types import Qrels


class DataError(ValueError):
    """Data that cannot be used as it stands; the message names the source and the line or row."""


@dataclass(frozen=True)
class RetrievalData:
    """Documents, queries and graded judgements by split; all texts are plain strings.

    Args:
        name: What the set is called in logs and run directories.
        corpus: Document id -> text (title and body joined by a space). It is common to all splits.
        queries: Query id -> text, for all splits together. A query without judgements may be present.
        qrels: Split -> query id -> document id -> grade. A grade above 0 is a positive; 0 or below was judged
            and found not relevant.
    """

    name: str
    corpus: dict[str, str]
    queries: dict[str, str]
    qrels: dict[str, Qrels]

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits that have judgements."""
        return tuple(self.qrels)

    def split(self, name: str) -> Qrels:
        """The judgements of one split.

        Args:
            name: A name of `splits`.

        Returns:
            Query id -> document id -> grade.

        Raises:
            ValueError: There is no such split; the message names those that exist.
        """
        if name not in self.qrels:
            raise ValueError(f"{self.name} has no split {name!r}; its splits are {list(self.qrels)}")
        return self.qrels[name]

    def split_queries(self, name: str) -> dict[str, str]:
        """The queries that are judged in one split, id -> text, in the order of the judgements."""
        return {query_id: self.queries[query_id] for query_id in self.split(name)}


def hold_out(data: RetrievalData, fractions: Mapping[str, float], split: str = "train") -> RetrievalData:
    """Move queries of one split to new splits, chosen by the hash of their text; equal queries stay together.

    Args:
        data: The set, for instance one that was published with a training split alone.
        fractions: New split -> share of the queries of `split`, such as `{"dev": 0.05, "test": 0.05}`.
        split: The split to take from; it keeps the rest.

    Returns:
        The set with the new splits; the documents stay common to all.

    Raises:
        ValueError: An unknown `split`, a new one that exists already, shares that leave nothing, or a split
            that would be empty.
    """
    if any(share <= 0 for share in fractions.values()) or sum(fractions.values()) >= 1:
        raise ValueError(f"fractions must be above 0 and sum to less than 1, got {dict(fractions)}")
    if known := [name for name in fractions if name in data.qrels]:
        raise ValueError(f"{data.name} has the splits {known} already")
    parts: dict[str, Qrels] = {name: {} for name in (*fractions, split)}
    for query_id, grades in data.split(split).items():
        digest = hashlib.sha256(data.queries[query_id].encode("utf-8")).digest()
        position = int.from_bytes(digest[:8], "big") / 2**64
        for name, share in (*fractions.items(), (split, 1.0)):
            if position < share or name == split:
                parts[name][query_id] = grades
                break
            position -= share
    for name, judgements in parts.items():
        if not judgements:
            raise ValueError(f"{data.name}: no query of the split {split!r} falls to {name!r}")
    return replace(data, qrels={**data.qrels, **parts})


def collect_texts(
    source: str, records: Iterable[tuple[int, str, str]], *, blank_allowed: bool
) -> dict[str, str]:
    """Gather texts under their ids.

    Args:
        source: File or data set, for messages.
        records: (line, id, text) in order.
        blank_allowed: Whether a text of white space alone may stand (a document may have none; a query may
            not).

    Returns:
        Id -> text without white space at its ends.

    Raises:
        DataError: No record at all, an empty or repeated id, or a blank text that is not allowed.
    """
    texts: dict[str, str] = {}
    for line, record_id, text in records:
        if not record_id:
            raise DataError(f"{source}:{line}: the id is empty")
        if record_id in texts:
            raise DataError(f"{source}:{line}: the id {record_id!r} occurs a second time")
        texts[record_id] = text.strip()
        if not blank_allowed and not texts[record_id]:
            raise DataError(f"{source}:{line}: {record_id!r} has no text")
    if not texts:
        raise DataError(f"{source} holds no record")
    return texts


def collect_judgements(
    source: str,
    rows: Iterable[tuple[int, str, str, int]],
    corpus: Mapping[str, str],
    queries: Mapping[str, str],
    *,
    training: bool,
) -> Qrels:
    """Gather the judgements of one split.

    Args:
        source: File or data set, for messages.
        rows: (line, query id, document id, grade) in order.
        corpus: The known documents.
        queries: The known queries.
        training: Whether every query must have a positive. Evaluation keeps a query judged without one, as
            ir-measures does; a training row cannot be made of it.

    Returns:
        Query id -> document id -> grade.

    Raises:
        DataError: An unknown id, a pair judged twice, no positive at all, or (training) a query without one.
    """
    judgements: Qrels = {}
    first_line: dict[str, int] = {}
    for line, query_id, document_id, grade in rows:
        if query_id not in queries:
            raise DataError(f"{source}:{line}: the query id {query_id!r} is not among the queries")
        if document_id not in corpus:
            raise DataError(f"{source}:{line}: the document id {document_id!r} is not in the corpus")
        grades = judgements.setdefault(query_id, {})
        if document_id in grades:
            raise DataError(f"{source}:{line}: query {query_id!r} judges {document_id!r} a second time")
        grades[document_id] = grade
        first_line.setdefault(query_id, line)
    if not any(max(grades.values()) > 0 for grades in judgements.values()):
        raise DataError(f"{source} holds no positive judgement (a grade above 0)")
    for query_id, grades in judgements.items() if training else ():
        if max(grades.values()) <= 0:
            raise DataError(
                f"{source}:{first_line[query_id]}: query {query_id!r} has no positive (a grade above 0); "
                "a training split needs one for each of its queries"
            )
    return judgements
