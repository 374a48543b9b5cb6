"""Hard negatives from a ranking: which of its documents become negatives of a query.

The window of ranks, the margin to the positive and the choice among the remaining documents follow Moreira et
al., "NV-Retriever: Improving text embedding models with effective hard-negative mining" (arXiv 2407.15831),
section 3. A document that scores nearly as high as the positive is likely to be an answer that nobody judged.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

from lexforge.common.types import DataError, Run
from lexforge.data.lines import stripped
from lexforge.data.retrieval_data import RetrievalData
from lexforge.settings import Shortage

Choice: TypeAlias = Literal["random", "top"]


class MinedRow(NamedTuple):
    """The ids of a training row; the first `mined` negatives come from the ranking, the others are random."""

    query: str
    positive: str
    negatives: tuple[str, ...]
    mined: int


@dataclass(frozen=True)
class NegativeRule:
    """Which documents of a ranking may be negatives, and which of them are taken.

    Args:
        per_row: The number of negatives of each row.
        first_rank: The best rank from which a negative may be taken, counted from 1 over all documents of the
            ranking.
        last_rank: The worst rank from which a negative may be taken.
        margin: A negative scores at most `p - margin * |p|`, where p is the positive's score in the same
            ranking. If the ranking lacks the positive, none of its documents meets that condition. None sets
            no condition.
        teacher_margin: The same condition on a teacher's scores, which keeps unjudged answers out. None needs
            no teacher.
        choice: `random` draws among the documents that meet the conditions; `top` takes the best ranks.
        shortage: What happens to a row for which too few documents are left: `random` adds random documents
            of the corpus, `drop` leaves the row out.
        seed: The seed of the draws. Otherwise they depend only on the query, the positive and the documents
            that are left.

    Raises:
        ValueError: If a number is out of range or a word is unknown.
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
            raise ValueError(f"per_row must be at least 1; received {self.per_row}")
        if not 1 <= self.first_rank <= self.last_rank:
            raise ValueError(
                f"ranks must be 1 <= first_rank <= last_rank; received {self.first_rank} and {self.last_rank}"
            )
        for name in ("margin", "teacher_margin"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ValueError(
                    f"{name} is a share of the positive's score and must lie in [0, 1); received {value}"
                )
        for name, allowed in (("choice", Choice), ("shortage", Shortage)):
            if getattr(self, name) not in get_args(allowed):
                raise ValueError(
                    f"{name} must be one of {get_args(allowed)}; received {getattr(self, name)!r}"
                )


NEGATIVE_RULE = NegativeRule(margin=0.05)
"""The rule of the recipes: a negative scores at most 95 % of what the positive scores. A document that scores
higher may well be an answer that nobody judged."""


class NegativeMiner:
    """Mines negatives for the (query, positive) pairs of a split from rankings of its queries.

    A negative is never a positive of the query or of another query with the same text. Its text is never
    blank and never equals that of the query or of such a positive. No text stands twice in a row. A pair
    whose positive is blank makes no row, and `summary` counts it.

    Args:
        data: The retrieval set.
        rule: Which documents may be negatives.
        split: The split to train on.

    Raises:
        ValueError: If there is no such split.
        DataError: If a query has no positive.
    """

    def __init__(self, data: RetrievalData, rule: NegativeRule, split: str = "train") -> None:
        self.data = data
        self.rule = rule
        self.split = split
        self.queries = data.split_queries(split)
        self._documents = list(data.corpus)
        self._positives: dict[str, list[str]] = {}
        self._blank = 0  # pairs that were left out
        self._by_text: dict[str, set[str]] = {}
        for query, grades in data.split(split).items():
            positives = [document for document, grade in grades.items() if grade > 0]
            if not positives:
                where = f"{data.name}, split {split!r}, query {query!r}"
                raise DataError(f"{where}: no positive (a grade above 0) to train on")
            self._positives[query] = [one for one in positives if stripped(data.corpus[one])]
            self._blank += len(positives) - len(self._positives[query])
            self._by_text.setdefault(self.queries[query], set()).update(self._positives[query])

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Return the (query, positive) pairs, in the order of the judgements, each of which becomes a row."""
        return [(query, positive) for query, found in self._positives.items() for positive in found]

    def candidates(self, run: Run) -> dict[str, list[str]]:
        """List the documents whose teacher scores `mine` reads.

        Args:
            run: Query id -> document id -> score, as in `mine`.

        Returns:
            Query id -> the documents between the two ranks that may be negatives, then the positives.

        Raises:
            DataError: If a query or document is unknown, or a score is NaN.
        """
        return {
            query: [*self._window(query, scores), *self._positives[query]] for query, scores in run.items()
        }

    def mine(self, run: Run, teacher_scores: Run | None = None) -> list[MinedRow]:
        """Make the rows of the queries that a run holds.

        Args:
            run: Query id -> document id -> score, for all queries of the split or a block of them. Documents
                are ranked by score; ties keep the dict's order. A query that found nothing has an empty
                entry.
            teacher_scores: Query id -> document id -> score, with every document of the run's window and
                every positive. Pass them if and only if the rule has a `teacher_margin`.

        Returns:
            A row for each (query, positive) pair, in the order of the run, without the rows that the rule
            drops. The same run gives the same rows, however the queries are cut into blocks.

        Raises:
            ValueError: If `teacher_scores` are given without a `teacher_margin`, or the other way round.
            DataError: If a query or document is unknown, if a score is NaN, if a teacher's score is missing,
                or if the corpus is too small to fill a row.
        """
        if (teacher_scores is None) != (self.rule.teacher_margin is None):
            raise ValueError(
                "teacher_margin and teacher_scores need each other; received teacher_margin="
                f"{self.rule.teacher_margin} {'without' if teacher_scores is None else 'with'} scores"
            )
        rows = []
        for query, scores in run.items():
            window = self._window(query, scores)
            known = None if teacher_scores is None else teacher_scores.get(query, {})
            for positive in self._positives[query]:
                row = self._row(query, positive, scores, window, known)
                if row is not None:
                    rows.append(row)
        return rows

    def summary(self, rows: Sequence[MinedRow]) -> str:
        """Return one line that counts all rows of the split, those filled up at random and those dropped."""
        blank = f", {self._blank} left out because the positive is blank" if self._blank else ""
        filled = sum(row.mined < self.rule.per_row for row in rows)
        width = self.rule.per_row
        return (
            f"{len(rows)} {'row' if len(rows) == 1 else 'rows'} of {width} "
            f"{'negative' if width == 1 else 'negatives'}; {filled} filled up at random, "
            f"{len(self.pairs) - len(rows)} dropped{blank}"
        )

    def _window(self, query: str, scores: Mapping[str, float]) -> list[str]:
        """Return the documents between the two ranks that may be negatives of the query, best first."""
        if query not in self._positives:
            raise DataError(f"the run names query {query!r}, which the split of {self.data.name} lacks")
        for document, score in scores.items():
            if document not in self.data.corpus:
                raise DataError(
                    f"the run names document {document!r} for query {query!r}, which {self.data.name} lacks"
                )
            if math.isnan(score):
                raise DataError(f"the run scores document {document!r} of query {query!r} as {score}")
        ranked = sorted(scores, key=lambda document: -scores[document])
        forbidden = self._forbidden(query)
        window = []
        for document in ranked[self.rule.first_rank - 1 : self.rule.last_rank]:
            text = self.data.corpus[document]
            if stripped(text) and text not in forbidden:
                window.append(document)
                forbidden.add(text)
        return window

    def _forbidden(self, query: str) -> set[str]:
        """Return the texts, beside blank ones, that no negative of the query may have."""
        text = self.queries[query]
        return {text, *(self.data.corpus[document] for document in self._by_text[text])}

    def _row(
        self,
        query: str,
        positive: str,
        scores: Mapping[str, float],
        window: list[str],
        teacher: Mapping[str, float] | None,
    ) -> MinedRow | None:
        """Choose the negatives of one pair; None drops the row."""
        rule = self.rule
        # Two filters in turn: the ranking's own scores, then the teacher's.
        left = window
        if rule.margin is not None:
            ceiling = _ceiling(scores[positive], rule.margin) if positive in scores else -math.inf
            left = [document for document in left if scores[document] <= ceiling]
        if teacher is not None and rule.teacher_margin is not None:
            for document in (positive, *left):
                if document not in teacher:
                    raise DataError(
                        f"query {query!r}: there is no teacher score for the document {document!r}"
                    )
            ceiling = _ceiling(teacher[positive], rule.teacher_margin)
            left = [document for document in left if teacher[document] <= ceiling]
        if len(left) < rule.per_row and rule.shortage == "drop":
            return None
        # Seeded by the pair's own ids, so that the draw does not depend on the rows before it.
        generator = random.Random(f"{rule.seed} {query} {positive}")
        mined = min(len(left), rule.per_row)
        chosen = left[:mined] if rule.choice == "top" else generator.sample(left, mined)
        drawn = self._draw(query, chosen, rule.per_row - mined, generator)
        return MinedRow(query, positive, (*chosen, *drawn), mined)

    def _draw(self, query: str, chosen: list[str], number: int, generator: random.Random) -> list[str]:
        """Draw random documents of the corpus that may be negatives of the query."""
        corpus, total = self.data.corpus, len(self._documents)
        forbidden = self._forbidden(query) | {corpus[document] for document in chosen}
        drawn: list[str] = []
        for _ in range(number):
            # Walk on from a random document to the first that is allowed: one draw each, and it always ends.
            start = generator.randrange(total)
            walk = (self._documents[(start + step) % total] for step in range(total))
            allowed = (one for one in walk if stripped(text := corpus[one]) and text not in forbidden)
            found = next(allowed, None)
            if found is None:
                raise DataError(
                    f"{self.data.name}: only {len(chosen) + len(drawn)} documents can be negatives of query "
                    f"{query!r}; received per_row={self.rule.per_row}"
                )
            drawn.append(found)
            forbidden.add(corpus[found])
        return drawn


def _ceiling(positive: float, margin: float) -> float:
    """Return the highest score that a negative may have."""
    return positive - margin * abs(positive)
