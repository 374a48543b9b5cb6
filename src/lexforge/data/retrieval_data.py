"""A retrieval data set in memory, and the checks that every loader makes while it fills one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexforge.common.text_identity import text_identity
from lexforge.common.types import DataError, Qrels, joined
from lexforge.data.faults import Faults
from lexforge.data.lines import check_new_id, stripped
from lexforge.data.splits import missing_split, with_held_out

_MISSING = "judgements of documents that the corpus lacks"


@dataclass(frozen=True)
class RetrievalData:
    """Documents, queries and graded judgements by split; all texts are plain strings.

    Args:
        name: The name of the set in logs and run directories.
        corpus: Document id -> text (title and body joined by a space). All splits share it. It may read its
            texts from the disk.
        queries: Query id -> text, for all splits together. A query without judgements may be present.
        qrels: Split -> query id -> document id -> grade. A document with a grade above 0 is a positive of the
            query; one with a grade of 0 or below was judged and found not relevant.
    """

    name: str
    corpus: Mapping[str, str]
    queries: dict[str, str]
    qrels: dict[str, Qrels]

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the names of the splits that have judgements."""
        return tuple(self.qrels)

    def split(self, name: str) -> Qrels:
        """Return the judgements of one split.

        Args:
            name: A name of `splits`.

        Returns:
            Query id -> document id -> grade.

        Raises:
            ValueError: If there is no such split; the message names those that exist.
        """
        if name not in self.qrels:
            raise missing_split(self.name, name, list(self.qrels))
        return self.qrels[name]

    def only(self, splits: Sequence[str]) -> RetrievalData:
        """Return the set with these splits alone; documents and queries stay.

        Raises:
            ValueError: If there is no such split.
        """
        return replace(self, qrels={name: self.split(name) for name in splits})

    def split_queries(self, name: str) -> dict[str, str]:
        """Return the queries that are judged in one split, id -> text, in the order of the judgements."""
        return {query_id: self.queries[query_id] for query_id in self.split(name)}

    def searched_parts(self, name: str) -> dict[str, Iterator[Any]]:
        """Return what decides the measures of a split, as parts for `lexforge.data.digests`.

        Returns:
            The identities of the documents, ascending: their order depends on what was held out, and decides
            no more than ties. The id, the text and the grades of each judged query.

        Raises:
            ValueError: If there is no such split.
        """
        documents = zip(self.corpus, self.corpus.values(), strict=True)
        identities = np.fromiter((text_identity(f"{key}\0{text}") for key, text in documents), np.int64)
        judged = self.split(name).items()
        return {
            "searched documents": map(int, np.sort(identities)),
            "judged queries": ((query, self.queries[query], grades) for query, grades in judged),
        }

    def retrieval(self) -> RetrievalData:
        """Return the set itself; `PairData.retrieval` makes one of rows."""
        return self

    def hold_out(self, fractions: Mapping[str, float], *, needed: Sequence[str]) -> RetrievalData:
        """Move queries of train to new splits, chosen by the hash of their text; equal queries stay together.

        Args:
            fractions: New split -> share of the queries of train, such as `{"dev": 0.05, "test": 0.05}`.
            needed: New splits that must not be empty; an empty one of the others is left out.

        Returns:
            The set with the new splits; all splits share the documents.

        Raises:
            ValueError: If there is no train, if a new split exists already, if the shares leave nothing for
                train, or if a split that is needed would be empty.
        """

        def texts(judged: Qrels) -> Iterator[str]:
            return (self.queries[query] for query in judged)

        def select(judged: Qrels, places: NDArray[np.int64]) -> Qrels:
            queries = list(judged)
            return {queries[place]: judged[queries[place]] for place in places}

        return replace(self, qrels=with_held_out(self.name, self.qrels, fractions, texts, select, needed))


def sample_corpus(data: RetrievalData, documents: int | None, splits: Sequence[str]) -> RetrievalData:
    """Make a set whose searches are cheaper: the judged documents, and a random sample of the others.

    Measures over a sample are higher than over the whole corpus, because fewer documents compete.

    Args:
        data: The set.
        documents: Number of documents to keep; the judged ones stay even where they are more. None keeps all.
        splits: The splits that are evaluated; other splits are left out.

    Returns:
        The smaller set; documents and queries keep their order.

    Raises:
        ValueError: If `documents` is below 1, or if there is no such split.
    """
    data = data.only(splits)
    if documents is None:
        return data
    if documents < 1:
        raise ValueError(f"a sample of the corpus must hold at least 1 document; received {documents}")
    judged = {document for grades in data.qrels.values() for found in grades.values() for document in found}
    # Places instead of ids, because the ids of millions of documents fill the memory.
    others = np.array([place for place, key in enumerate(data.corpus) if key not in judged], dtype=np.int64)
    room = min(max(0, documents - len(judged)), len(others))
    drawn = set(others[random.Random(0).sample(range(len(others)), room)].tolist())
    items = enumerate(zip(data.corpus, data.corpus.values(), strict=True))
    corpus = {key: text for place, (key, text) in items if place in drawn or key in judged}
    return replace(data, corpus=corpus)


def join_titles(records: Iterable[tuple[object, str | int, str, str]]) -> Iterator[tuple[object, str, str]]:
    """Yield (where it stands, id, title and text joined) for each record of `Format.titled`."""
    return ((where, str(key), joined(title, text)) for where, key, title, text in records)


def untitled(source: str, texts: Mapping[str, str]) -> Iterator[tuple[object, str, str, str]]:
    """Yield (source, id, blank title, text) for each text; see `Format.titled`."""
    for key, text in zip(texts, texts.values(), strict=True):  # `items` would search a file for each id
        yield source, key, "", text


def collect_texts(
    source: str, records: Iterable[tuple[object, str, str]], *, blank_allowed: bool
) -> dict[str, str]:
    """Gather texts under their ids.

    Args:
        source: The file or data set, for error messages.
        records: (where it stands, id, text) in order; the text of the first names file and line in messages.
        blank_allowed: Whether a text may be blank; that of a document may, that of a query may not.

    Returns:
        Id -> text without white space at its ends.

    Raises:
        DataError: If there is no record at all, if an id is empty or repeated, or if a text is blank where
            that is not allowed.
    """
    texts: dict[str, str] = {}
    for where, record_id, text in records:
        check_new_id(where, record_id, texts)
        texts[record_id] = stripped(text)
        if not blank_allowed and not texts[record_id]:
            raise DataError(f"{where}: {record_id!r} has no text")
    if not texts:
        raise DataError(f"{source} holds no record")
    return texts


def collect_judgements(
    source: str,
    rows: Iterable[tuple[object, str, str, int]],
    corpus: Mapping[str, str],
    queries: Mapping[str, str],
    *,
    training: bool,
    faults: Faults,
) -> Qrels:
    """Gather the judgements of one split.

    Args:
        source: The file or data set, for error messages.
        rows: (where it stands, query id, document id, grade) in order, as for `collect_texts`.
        corpus: The known documents.
        queries: The known queries.
        training: Whether the split is trained on. Every query must then have a positive; evaluation keeps a
            query that has none, as ir-measures does. A judgement about a document that the corpus lacks is
            left out and told, with a query that has no positive but such; evaluation refuses it, because its
            measures would change. So is a positive without a text, which evaluation keeps.
        faults: Counts unknown ids, pairs that are judged twice, and queries of a training split without a
            positive.

    Returns:
        Query id -> document id -> grade.

    Raises:
        DataError: If there is no positive at all.
    """
    judgements: Qrels = {}
    first: dict[str, object] = {}  # query id -> where its first judgement stands
    lost: dict[str, str] = {}  # query id -> the first message about a document that is missing
    for where, query_id, document_id, grade in rows:
        faults.rows += 1
        first.setdefault(query_id, where)
        if query_id not in queries:
            message = f"the query id {query_id!r} is not among the queries"
            faults.bad("judgements of unknown queries", where, message, query_id)
        elif document_id not in corpus:
            message = f"the document id {document_id!r} is not in the corpus"
            lost.setdefault(query_id, f"{where}: {message}")
            if training:
                faults.told(f"{_MISSING}, left out of train", where, document_id)
            else:
                faults.bad(_MISSING, where, message, document_id)
        elif training and grade > 0 and not corpus[document_id]:
            lost.setdefault(query_id, f"{where}: the document {document_id!r} is blank")
            faults.told("answers without text, left out of train", where, document_id)
        elif document_id in (grades := judgements.setdefault(query_id, {})):
            message = f"query {query_id!r} judges {document_id!r} a second time"
            faults.bad("repeated judgements", where, message, f"{query_id}, {document_id}")
        else:
            grades[document_id] = grade
    if not any(max(grades.values()) > 0 for grades in judgements.values()):
        faults.finish()  # names the first line that is wrong
        if lost:
            raise DataError(f"{next(iter(lost.values()))}, and no positive judgement is left")
        raise DataError(f"{source} holds no positive judgement (a grade above 0)")
    for query_id in list(first) if training else ():
        if max(judgements.get(query_id, {}).values(), default=0) > 0:
            continue
        message = f"query {query_id!r} has no positive (a grade above 0); a training split needs one for each"
        if query_id in lost:
            faults.told("queries of train without a document that is left", first[query_id], query_id)
        elif query_id in judgements:
            faults.bad("queries of train without a positive", first[query_id], message, query_id)
        judgements.pop(query_id, None)
    return judgements
