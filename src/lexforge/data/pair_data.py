"""A retrieval set whose rows stand in tables: trained on from the disk, and measured on a part in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lexforge.common.text_identity import text_identity
from lexforge.common.types import DataError, Qrels
from lexforge.data.columns import ANCHOR, LABEL, POSITIVE
from lexforge.data.faults import Faults
from lexforge.data.pairs import WEIGHT, columns_of_split, pair_rows, with_relevant
from lexforge.data.retrieval_data import RetrievalData
from lexforge.data.splits import TRAIN, missing_split, with_held_out
from lexforge.data.tables import Table, TextColumn

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class PairData:
    """Rows under the column contract, by split; the texts stay on the disk.

    Args:
        name: The name of the set in logs.
        splits: Split -> rows, as `lexforge.data.pairs.pair_rows` makes them.
    """

    name: str
    splits: dict[str, Table]

    @classmethod
    def of_tables(
        cls, name: str, tables: Mapping[str, Table], columns: Mapping[str, str], faults: Faults
    ) -> PairData:
        """Recognise the columns of tables; see `pair_rows`.

        Args:
            name: The name of the set.
            tables: Split -> table.
            columns: Names of columns by their role; that of the weights is read in train alone.
            faults: Counts what is wrong, and is finished by the caller.

        Returns:
            The set.

        Raises:
            DataError: If `pair_rows` refuses a table.
        """
        made = {
            split: pair_rows(table, columns_of_split(split, columns), faults)
            for split, table in tables.items()
        }
        return cls(name, made)

    def split(self, name: str) -> Dataset:
        """Return the rows of one split under the column contract.

        Raises:
            ValueError: If there is no such split; the message names those that exist.
        """
        rows = self._split(name).rows
        return rows.remove_columns(WEIGHT) if WEIGHT in rows.column_names else rows

    def weights(self, name: str) -> NDArray[np.float64] | None:
        """Return the weight of each row of a split, `[rows]` float64; None if the rows have none.

        Raises:
            ValueError: If there is no such split.
            DataError: If all weights are 0.
        """
        rows = self._split(name).rows
        if WEIGHT not in rows.column_names:
            return None
        weights = np.array(rows[WEIGHT], dtype=np.float64)
        if not weights.any():
            raise DataError(f"{self.name}: no row of the split {name!r} has a weight above 0")
        return weights

    def places(self, name: str) -> Callable[[int], str]:
        """Return a function from a row of a split, from 0, to where it stands in its source.

        Raises:
            ValueError: If there is no such split.
        """
        return self._split(name).place

    def _split(self, name: str) -> Table:
        if name not in self.splits:
            raise missing_split(self.name, name, list(self.splits))
        return self.splits[name]

    def hold_out(self, fractions: Mapping[str, float], *, needed: Sequence[str]) -> PairData:
        """Move queries of train to new splits, as `RetrievalData.hold_out` does; memory holds no text.

        Args:
            fractions: New split -> share of the queries of train.
            needed: New splits that must not be empty; an empty one of the others is left out.

        Returns:
            The set with the new splits.

        Raises:
            ValueError: If a split exists already, the shares leave nothing, or a split that is needed would
                be empty.
        """

        def texts(table: Table) -> TextColumn:
            return TextColumn(table.rows, ANCHOR)

        return replace(
            self, splits=with_held_out(self.name, self.splits, fractions, texts, Table.select, needed)
        )

    def training_rows(self, *, negatives: bool = True) -> Dataset:
        """Return the rows of train for a trainer, with `relevant` where a query has several positives.

        Args:
            negatives: Whether to keep the negatives and the scores.

        Returns:
            The rows, mapped from the disk.
        """
        rows = self.split(TRAIN)
        if not negatives:
            rows = rows.select_columns([ANCHOR, POSITIVE])
        return with_relevant(rows)

    def retrieval(self, splits: Sequence[str] | None = None, documents: int | None = None) -> RetrievalData:
        """Read queries, documents and judgements into memory; equal texts get one id.

        A negative is judged with grade 0, unless its text is also a positive of the query.

        Args:
            splits: The splits whose queries and judgements are read; None reads all.
            documents: Number of documents; those of other rows are drawn at random until there are so many.
                The judged documents stay even where they are more. None keeps the documents of all splits.

        Returns:
            The set. The id of a document is `d`, and that of a query `q`, with 16 hexadecimal digits of its
            text's hash. So it is the same whichever splits are read, and runs can be compared.

        Raises:
            ValueError: If there is no such split, or if `documents` is below 1.
        """
        if documents is not None and documents < 1:
            raise ValueError(f"a sample of the corpus must hold at least 1 document; received {documents}")
        chosen = list(self.splits) if splits is None else list(splits)
        query_ids: dict[str, str] = {}
        document_ids: dict[str, str] = {}
        judged: dict[str, Qrels] = {}
        for split in chosen:
            judgements = judged.setdefault(split, {})
            for record in self.split(split):
                query_id = query_ids.setdefault(record[ANCHOR], _id("q", record[ANCHOR]))
                grades = judgements.setdefault(query_id, {})
                for column, text in record.items():
                    if column not in (ANCHOR, LABEL):
                        document_id = document_ids.setdefault(text, _id("d", text))
                        # A text that is a positive of the query in any row stays a positive.
                        grade = int(column == POSITIVE)
                        grades[document_id] = max(grade, grades.get(document_id, 0))
        for split in self.splits if len(chosen) < len(self.splits) or documents is not None else ():
            if documents is None or len(document_ids) < documents:
                self._add_documents(split, document_ids, documents)
        corpus = {document_id: text for text, document_id in document_ids.items()}
        return RetrievalData(
            self.name, corpus, {query_id: text for text, query_id in query_ids.items()}, judged
        )

    def _add_documents(self, split: str, ids: dict[str, str], documents: int | None) -> None:
        """Add the documents of a split, drawn in random order, until there are enough."""
        rows = self.split(split)
        rows = rows.select_columns([name for name in rows.column_names if name not in (ANCHOR, LABEL)])
        if documents is not None:
            rows = rows.select(np.random.default_rng(0).permutation(len(rows)))
        for batch in rows.iter(batch_size=1000):  # row by row takes three times as long
            for text in chain.from_iterable(zip(*batch.values(), strict=True)):
                if documents is not None and len(ids) >= documents:
                    return
                ids.setdefault(text, _id("d", text))

    def documents(self) -> TextColumn:
        """Return the positives of train as a sequence that reads them from the disk."""
        return TextColumn(self.split(TRAIN), POSITIVE)


def _id(role: str, text: str) -> str:
    return f"{role}{text_identity(text) & (2**64 - 1):016x}"
