"""Retrieval data by the name that a command line takes, whatever their source."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lexforge.common.command_line import refuse_unread
from lexforge.data.columns import ANCHOR
from lexforge.data.faults import Faults
from lexforge.data.formats import checked_format, msmarco, texts
from lexforge.data.pair_data import PairData
from lexforge.data.retrieval_data import RetrievalData, collect_texts, join_titles, sample_corpus
from lexforge.data.rows import digests
from lexforge.data.splits import TEST, TRAIN, missing_shares, trained_texts, unread_splits
from lexforge.data.tables import TextColumn
from lexforge.settings import SourceOptions

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset
    from numpy.typing import NDArray


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingData:
    """What a recipe trains on and measures.

    Args:
        measured: Queries and judgements of the measured splits, and the documents that are searched.
        documents: The texts of the documents to train on; those of tables and of MS MARCO's collection are
            read from the disk.
        retrieval: The whole set, from whose judgements training rows are made; None for tables.
        pairs: The rows of tables, which stay on the disk; None where judgements name documents.
        held_out: The splits that were held out of train.
        notes: What was guessed, left out and counted while the data were read, one line each.
    """

    measured: RetrievalData
    documents: Sequence[str]
    retrieval: RetrievalData | None = None
    pairs: PairData | None = None
    held_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def training_rows(self, *, negatives: bool = True) -> Dataset:
        """Return the training rows of tables, mapped from the disk.

        Args:
            negatives: Whether to keep the negatives and the scores of the rows.

        Raises:
            ValueError: If the data are no tables; `lexforge.negatives.rows_of_judgements` makes rows of
                judgements.
        """
        if self.pairs is None:
            raise ValueError(f"{self.measured.name} has judgements and no rows; received no tables")
        return self.pairs.training_rows(negatives=negatives)

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """The weights of the training rows, `[rows]` float64 in their order; None if they have none."""
        return None if self.pairs is None else self.pairs.weights(TRAIN)

    def digests(self, rows: Sequence[Mapping[str, Any]] | Dataset) -> dict[str, dict[str, Any]]:
        """Compute the digests of what a run trains on and measures.

        Args:
            rows: The training rows.

        Returns:
            As `lexforge.data.digests`, of the documents, the queries, the judgements, the rows, the weights
            if there are any, and what the test searches (`RetrievalData.searched_parts`).
        """
        whole = self.retrieval or self.measured
        judgements = ((split, *judged) for split, found in whole.qrels.items() for judged in found.items())
        parts: dict[str, Iterable[Any]] = {
            "documents": zip(whole.corpus, whole.corpus.values(), strict=True),
            "queries": whole.queries.items(),
            "judgements": judgements,
            "rows": rows,
        }
        weights = self.weights
        if weights is not None:
            parts["weights"] = weights.tolist()
        if TEST in self.measured.splits:
            parts |= self.measured.searched_parts(TEST)
        return digests(parts)

    def other_queries(self) -> list[str]:
        """Return the texts of queries that are neither trained on nor in the test, such as those of dev.

        Returns:
            The texts in the order of the data; none for tables, which have no query beside their rows.
        """
        if self.retrieval is None:
            return []
        judged = {query for name in (TRAIN, TEST) for query in self.retrieval.qrels.get(name, ())}
        return [text for query, text in self.retrieval.queries.items() if query not in judged]


def check_source(source: str, splits: Sequence[str], options: SourceOptions | None = None) -> None:
    """Refuse a wrong name of a set or column, as far as the names and beginnings of its files tell.

    It takes no time beside that of loading torch or `datasets`, and needs neither.

    Args:
        source: A name that `load_retrieval_data` takes; one on the hub is left to it.
        splits: The splits that the caller needs.
        options: Names of columns, and the share that is held out for a missing split.

    Raises:
        FileNotFoundError: If the folder or one of its files does not exist.
        ValueError: If there is no such split.
        DataError: If a file lacks a column.
    """
    options = options or SourceOptions()
    known = checked_format(source, options).split_names(source, options)
    if known is not None:
        missing_shares(source, known, splits, options.hold_out)


def load_retrieval_data(
    source: str, splits: Sequence[str] | None = None, options: SourceOptions | None = None
) -> RetrievalData:
    """Load a retrieval set into memory by the name that a command line takes.

    Args:
        source: One of these: `docstrings` (the embedded corpus); a folder in BEIR layout; a folder of MS
            MARCO's files, or triples of ids in it; a file of rows of texts (.parquet; .csv, .tsv, .jsonl,
            also .gz or .zst); a folder of such files by split, or of `save_to_disk`;
            `hf:organisation/name` or `hf:organisation/name:configuration`.
        splits: The splits to keep; None keeps all.
        options: Names of columns, and the share that is held out for a missing split.

    Returns:
        The set, checked.

    Raises:
        FileNotFoundError: If the folder or one of its files does not exist.
        ValueError: If there is no such split.
        DataError: If the data cannot be used; the message names file and line.
    """
    options = options or SourceOptions()
    reason = "they say how often a row is trained on, and nothing is trained here"
    refuse_unread(options, ["weight_column"], reason)
    opened, _, notes = _open(source, splits, options)
    for note in notes:
        logger.warning("%s", note)
    data = opened.retrieval()
    return data if splits is None else data.only(splits)


def load_documents(source: str, options: SourceOptions | None = None) -> Mapping[str, str]:
    """Load the documents of a set; queries and judgements of a folder need not exist.

    Args:
        source: A name that `load_retrieval_data` takes, or documents alone: `corpus.jsonl` in BEIR's form, a
            file .txt, .md, .rst, .html or .pdf, or a folder of such files.
        options: Names of columns.

    Returns:
        Document id -> text.

    Raises:
        FileNotFoundError: If the folder or one of its files does not exist.
        DataError: If the data cannot be used; the message names file and line.
    """
    options = options or SourceOptions()
    refuse_unread(options, ["weight_column"], "documents have none")
    found = checked_format(source, options)
    if found is msmarco:  # millions of texts stay on the disk
        return msmarco.collection(source)
    notes: list[str] = []
    records = found.titled(source, options, notes)
    if found is texts:
        records = texts.with_text(records, notes)
    documents = collect_texts(source, join_titles(records), blank_allowed=True)
    for note in notes:
        logger.warning("%s", note)
    return documents


def load_training_data(
    source: str,
    measured_splits: Sequence[str],
    options: SourceOptions | None = None,
    *,
    given_rows: bool = True,
    documents: int | None = None,
) -> TrainingData:
    """Load what a recipe trains on and measures; the rows of tables stay on the disk.

    Args:
        source: A name that `load_retrieval_data` takes.
        measured_splits: The splits that are measured, such as test.
        options: Names of columns, and the share that is held out for a missing split.
        given_rows: Whether the rows of tables are trained on as they are. If negatives are to be mined for
            them, they are read into memory as a retrieval set instead.
        documents: Number of documents that are searched: the judged ones and a random sample; None takes all.

    Returns:
        The data.

    Raises:
        FileNotFoundError: If the folder or one of its files does not exist.
        ValueError: If there is no such split, if `documents` is below 1, or if a column of weights is named
            for rows that are not trained on as they are.
        DataError: If the data cannot be used; the message names file and line.
    """
    needed = [TRAIN, *measured_splits]
    opened, held_out, notes = _open(source, needed, options or SourceOptions())

    # Rows of texts are trained on from the disk; only what is measured is read into memory.
    if isinstance(opened, PairData) and given_rows:
        measured = opened.retrieval(measured_splits, documents)
        notes += _trained_queries(source, TextColumn(opened.split(TRAIN), ANCHOR), measured, held_out)
        return TrainingData(measured, opened.documents(), pairs=opened, held_out=held_out, notes=notes)

    # Rows that are made anew have no weights of their own.
    if options is not None:
        refuse_unread(options, ["weight_column"], "weights belong to rows that are trained on as given")

    # Judgements name documents. So do those of rows in memory, for which negatives are to be mined.
    whole = opened.retrieval().only(needed)
    measured = sample_corpus(whole, documents, measured_splits)
    notes += _trained_queries(source, whole.split_queries(TRAIN).values(), measured, held_out)
    found = whole.corpus.values()
    listed = found if isinstance(found, Sequence) else list(found)
    return TrainingData(measured, listed, whole, held_out=held_out, notes=notes)


def _trained_queries(
    source: str, trained: Iterable[str], measured: RetrievalData, held_out: Sequence[str]
) -> tuple[str, ...]:
    """Tell the measured queries that are trained on too; the hash that holds queries out leaves none."""
    given = {
        split: measured.split_queries(split).values() for split in measured.splits if split not in held_out
    }
    return tuple(trained_texts(source, trained, given, "queries"))


def _open(
    source: str, splits: Sequence[str] | None, options: SourceOptions
) -> tuple[RetrievalData | PairData, tuple[str, ...], tuple[str, ...]]:
    """Open a source, and hold out the splits that are missing; None wants those that exist.

    Returns:
        The data, the splits that were held out, and what is told of the data.
    """
    faults = Faults(source, options.bad_rows)
    # With a share to hold out, the splits that exist are known only after all have been read.
    found = checked_format(source, options)
    opened = found.open(source, options, None if options.hold_out else splits, faults)
    notes = tuple(faults.finish())
    if isinstance(opened, PairData) and splits is not None:
        sizes = {split: len(table.rows) for split, table in opened.splits.items()}
        notes += tuple(f"{source}: {line}" for line in unread_splits(sizes, splits))
    shares = missing_shares(opened.name, list(opened.splits), splits or (), options.hold_out)
    if not shares:
        return opened, (), notes
    return opened.hold_out(shares, needed=splits or ()), tuple(shares), notes
