"""Hard negatives from any ranked run: which documents of a ranking stand against a query's positive.

Window, margin to the positive and the choice among what is left follow Moreira et al., "NV-Retriever:
Improving text embedding models with effective hard-negative mining" (arXiv 2407.15831), section 3: a document
that scores nearly as high as the positive is likely to be an unjudged answer.
"""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from lexforge.common.text_identity import text_identity
from lexforge.common.types import Embeddings
from lexforge.data.columns import ANCHOR, POSITIVE, RELEVANT, validate_columns
from lexforge.data.lines import json_objects
from lexforge.data.retrieval_data import DataError, RetrievalData

Scores = Mapping[str, Mapping[str, float]]
Choice = Literal["random", "top"]
Shortage = Literal["random", "drop"]


class MinedRow(NamedTuple):
    """Ids of a training row; the first `mined` negatives are from the ranking, the rest drawn at random."""

    query: str
    positive: str
    negatives: tuple[str, ...]
    mined: int


@dataclass(frozen=True)
class NegativeRule:
    """Which documents of a ranking may be negatives, and which of them are taken.

    Args:
        per_row: Negatives of each row.
        first_rank: Best rank looked at, counted from 1 over all documents of the ranking.
        last_rank: Worst rank looked at.
        margin: A negative scores at most `p - margin * |p|`, where p is the positive's score in the same
            ranking; a positive that the ranking lacks scored less than all it holds. None sets no condition.
        teacher_margin: The same by a teacher's scores: the filter of false negatives. None asks no teacher.
        choice: `random` draws among what is left, `top` takes the best ranks.
        shortage: What becomes of a row for which too few are left: `random` fills it up with random documents
            of the corpus, `drop` leaves it out.
        seed: Of the draws. They depend on nothing else but the query, the positive and what is left.

    Raises:
        ValueError: A number out of range or an unknown word.
    """

    per_row: int = 1
    first_rank: int = 1
    last_rank: int = 50
    margin: float | None = None
    teacher_margin: float | None = None
    choice: Choice = "random"
    shortage: Shortage = "random"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.per_row < 1:
            raise ValueError(f"per_row must be at least 1, got {self.per_row}")
        if not 1 <= self.first_rank <= self.last_rank:
            raise ValueError(f"ranks must be 1 <= first <= last, got {self.first_rank} to {self.last_rank}")
        for name in ("margin", "teacher_margin"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"{name} is a share of the positive's score in [0, 1), got {value}")
        for name, kind in (("choice", Choice), ("shortage", Shortage)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"{name} must be one of {get_args(kind)}, got {getattr(self, name)!r}")


class NegativeMiner:
    """Mines the negatives of a split's (query, positive) pairs from rankings of its queries.

    A negative is never a positive of the query or of a query of the same text, nor a document whose text is
    that of the query, of such a positive, or blank; and no text stands twice in a row.

    Args:
        data: The retrieval set.
        rule: What may be a negative.
        split: The split to train on.

    Raises:
        ValueError: No such split.
        DataError: A query without a positive.
    """

    def __init__(self, data: RetrievalData, rule: NegativeRule, split: str = "train") -> None:
        self.data = data
        self.rule = rule
        self.queries = data.split_queries(split)
        self._documents = list(data.corpus)
        self._positives: dict[str, list[str]] = {}
        self._by_text: dict[str, set[str]] = {}
        for query, grades in data.split(split).items():
            self._positives[query] = [document for document, grade in grades.items() if grade > 0]
            if not self._positives[query]:
                where = f"{data.name}, split {split!r}, query {query!r}"
                raise DataError(f"{where}: no positive (a grade above 0) to train on")
            self._by_text.setdefault(self.queries[query], set()).update(self._positives[query])

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The (query, positive) pairs, in the order of the judgements: a row each."""
        return [(query, positive) for query, found in self._positives.items() for positive in found]

    def mine(self, run: Scores, teacher_scores: Scores | None = None, *, seed: int = 0) -> list[MinedRow]:
        """The rows of the queries that a run holds.

        Args:
            run: Query id -> document id -> score, of all queries of the split or of a block of them; ranked
                by score, ties in the dict's order. A query that found nothing has an empty entry.
            teacher_scores: Query id -> document id -> score, with every document of the run's window and
                every positive; needed where the rule has a `teacher_margin`, refused where it has none.
            seed: Added to the rule's seed, for one mining after another.

        Returns:
            A row for each (query, positive) pair, in the order of the run; fewer where short rows are
            dropped. The same run and seed give the same rows, however the queries are cut into blocks.

        Raises:
            ValueError: `teacher_scores` and the rule do not go together.
            DataError: A query or document that is unknown, a teacher's score that is missing, or a corpus too
                small to fill a row, a score that is NaN.
        """
        if (teacher_scores is None) != (self.rule.teacher_margin is None):
            raise ValueError(
                f"teacher_margin is {self.rule.teacher_margin}, and teacher's scores were "
                f"{'not ' if teacher_scores is None else ''}given: a filter needs both"
            )
        rows = []
        for query, scores in run.items():
            if query not in self._positives:
                raise DataError(f"the run names query {query!r}, not in the split of {self.data.name}")
            window = self._window(query, scores)
            known = None if teacher_scores is None else teacher_scores.get(query, {})
            for positive in self._positives[query]:
                row = self._row(query, positive, scores, window, known, self.rule.seed + seed)
                if row is not None:
                    rows.append(row)
        return rows

    def summary(self, rows: Sequence[MinedRow]) -> str:
        """One line on all rows of the split: how many there are, were filled up, and were dropped."""
        filled = sum(row.mined < self.rule.per_row for row in rows)
        return (
            f"{len(rows)} rows of {self.rule.per_row} negatives; {filled} filled up at random, "
            f"{len(self.pairs) - len(rows)} dropped"
        )

    def _window(self, query: str, scores: Mapping[str, float]) -> list[str]:
        """The documents between the two ranks that may be a negative of the query at all, best first."""
        for document, score in scores.items():
            if document not in self.data.corpus:
                raise DataError(
                    f"the run names document {document!r} for query {query!r}, not in {self.data.name}"
                )
            if math.isnan(score):
                raise DataError(f"the run scores document {document!r} of query {query!r} as {score}")
        ranked = sorted(scores, key=lambda document: -scores[document])
        forbidden = self._forbidden(query)
        window = []
        for document in ranked[self.rule.first_rank - 1 : self.rule.last_rank]:
            text = self.data.corpus[document]
            if text not in forbidden:
                window.append(document)
                forbidden.add(text)
        return window

    def _forbidden(self, query: str) -> set[str]:
        """Texts that no negative of the query may have."""
        text = self.queries[query]
        return {"", text, *(self.data.corpus[document] for document in self._by_text[text])}

    def _row(
        self,
        query: str,
        positive: str,
        scores: Mapping[str, float],
        window: list[str],
        teacher: Mapping[str, float] | None,
        seed: int,
    ) -> MinedRow | None:
        rule = self.rule
        left = window
        if rule.margin is not None:
            ceiling = _ceiling(scores[positive], rule.margin) if positive in scores else -math.inf
            left = [document for document in left if scores[document] <= ceiling]
        if teacher is not None and rule.teacher_margin is not None:
            for document in (positive, *left):
                if document not in teacher:
                    raise DataError(f"query {query!r}: no teacher score for the document {document!r}")
            ceiling = _ceiling(teacher[positive], rule.teacher_margin)
            left = [document for document in left if teacher[document] <= ceiling]
        if len(left) < rule.per_row and rule.shortage == "drop":
            return None
        generator = random.Random(f"{seed} {query} {positive}")  # a string's seed is that of its bytes
        mined = min(len(left), rule.per_row)
        chosen = left[:mined] if rule.choice == "top" else generator.sample(left, mined)
        drawn = self._draw(query, chosen, rule.per_row - mined, generator)
        return MinedRow(query, positive, (*chosen, *drawn), mined)

    def _draw(self, query: str, chosen: list[str], number: int, generator: random.Random) -> list[str]:
        """Random documents of the corpus that may be negatives of the query."""
        corpus, total = self.data.corpus, len(self._documents)
        forbidden = self._forbidden(query) | {corpus[document] for document in chosen}
        drawn: list[str] = []
        for _ in range(number):
            start = generator.randrange(total)
            walk = (self._documents[(start + step) % total] for step in range(total))
            found = next((document for document in walk if corpus[document] not in forbidden), None)
            if found is None:
                raise DataError(
                    f"{self.data.name}: {len(chosen) + len(drawn)} documents can be negatives of query "
                    f"{query!r}, fewer than the {self.rule.per_row} asked"
                )
            drawn.append(found)
            forbidden.add(corpus[found])
        return drawn


def score_by_teacher(
    embeddings: Embeddings, data: RetrievalData, run: Scores, split: str = "train"
) -> dict[str, dict[str, float]]:
    """A dense teacher's scores of every document of a run and every positive of its queries.

    Args:
        embeddings: Of the queries and the corpus.
        data: The retrieval set.
        run: Query id -> document id -> score; the scores are not read.
        split: Whose positives are scored.

    Returns:
        Query id -> document id -> cosine, for `NegativeMiner.mine`.
    """
    scores = {}
    for query, found in run.items():
        positives = [document for document, grade in data.split(split).get(query, {}).items() if grade > 0]
        documents = list(dict.fromkeys([*found, *positives]))
        vectors = embeddings[[data.queries[query], *(data.corpus[document] for document in documents)]]
        values = vectors[1:].astype(np.float32) @ vectors[0].astype(np.float32)
        scores[query] = dict(zip(documents, values.tolist(), strict=True))
    return scores


def mined_columns(
    data: RetrievalData, rows: Iterable[MinedRow], split: str | None = None
) -> list[dict[str, Any]]:
    """Turn mined rows into training rows: `anchor`, `positive`, `negative_1` .. `negative_n`.

    Args:
        data: The retrieval set.
        rows: The rows of `NegativeMiner`.
        split: The split of their queries. If one of its queries has several relevant documents, every row
            also gets the column `relevant` with the identities of those of its query. (With one relevant
            document per query the column would say what `positive` says.) None adds no such column.

    Returns:
        One dict per row, under the column contract.
    """
    rows = list(rows)
    relevant: dict[str, list[int]] = {}
    if split is not None:
        relevant = {
            query: [text_identity(data.corpus[document]) for document, grade in grades.items() if grade > 0]
            for query, grades in data.split(split).items()
        }
    several = any(len(relevant.get(row.query, ())) > 1 for row in rows)
    return [
        {ANCHOR: data.queries[row.query], POSITIVE: data.corpus[row.positive]}
        | {f"negative_{rank}": data.corpus[document] for rank, document in enumerate(row.negatives, start=1)}
        | ({RELEVANT: relevant[row.query]} if several else {})
        for row in rows
    ]


def write_training_rows(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write training rows as JSON lines; a name that ends in .gz is compressed.

    Args:
        path: The file; what it held is replaced.
        rows: Rows under the column contract.

    Raises:
        DataError: The rows break the contract.
    """
    validate_columns(rows)
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8")
    Path(path).write_bytes(gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def read_training_rows(path: str | Path) -> list[dict[str, Any]]:
    """Read what `write_training_rows` wrote.

    Args:
        path: The file.

    Returns:
        The rows.

    Raises:
        FileNotFoundError: There is no such file.
        DataError: A line that is no JSON object in UTF-8, or rows that break the column contract; the message
            names the file.
    """
    rows = [row for _, row in json_objects(Path(path), ())]
    try:
        validate_columns(rows)
    except DataError as error:
        raise DataError(f"{path} (row 0 is line 1): {error}") from error
    return rows


def _ceiling(positive: float, margin: float) -> float:
    return positive - margin * abs(positive)
