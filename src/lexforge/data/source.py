"""Retrieval data by the name that a command line takes, whatever their source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexforge.data.beir import beir_files, load_beir, load_corpus
from lexforge.data.collection import Collection
from lexforge.data.digest import digests
from lexforge.data.docstrings import load_docstrings
from lexforge.data.hub import has_beir_layout, load_hub, split_hub_name
from lexforge.data.msmarco import is_msmarco, load_msmarco, load_msmarco_corpus
from lexforge.data.pair_data import PairData
from lexforge.data.pairs import HEADERS, find_roles
from lexforge.data.retrieval_data import RetrievalData, hold_out, sample_corpus
from lexforge.data.tables import (
    PREFIX,
    SPLIT,
    first_columns,
    is_table,
    load_tables,
    missing_shares,
    table_files,
)
from lexforge.settings import SourceOptions

if TYPE_CHECKING:
    from datasets import Dataset

TRAIN, TEST = "train", "test"


@dataclass(frozen=True)
class TrainingData:
    """What a recipe trains on and measures.

    Args:
        measured: Queries and judgements of the measured splits, and the documents that are searched.
        documents: The texts of the documents to train on; those of tables and of MS MARCO's collection are
            read from the disk.
        retrieval: The whole set, from whose judgements training rows are made; None for tables.
        pairs: The rows of tables, which stay on the disk; None where judgements name documents.
    """

    measured: RetrievalData
    documents: Sequence[str]
    retrieval: RetrievalData | None = None
    pairs: PairData | None = None

    def training_rows(self, *, negatives: bool = True) -> Dataset:
        """Return the training rows of tables, mapped from the disk.

        Args:
            negatives: Whether to keep the negatives and the scores of the rows.

        Raises:
            ValueError: If the data are no tables; `lexforge.negatives.training_rows` makes rows of
                judgements.
        """
        if self.pairs is None:
            raise ValueError(f"{self.measured.name} has judgements and no rows; received no tables")
        return self.pairs.training_rows(negatives=negatives)

    def digests(self, rows: Sequence[Mapping[str, Any]] | Dataset) -> dict[str, dict[str, Any]]:
        """Compute the digests of what a run trains on and measures; all texts are read once.

        Args:
            rows: The training rows.

        Returns:
            As `lexforge.data.digests`, of the documents, the queries, the judgements and the rows.
        """
        whole = self.retrieval or self.measured
        judgements = ((split, *judged) for split, found in whole.qrels.items() for judged in found.items())
        return digests(
            {
                "documents": zip(whole.corpus, whole.corpus.values(), strict=True),
                "queries": whole.queries.items(),
                "judgements": judgements,
                "rows": rows,
            }
        )

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
        source: A name that `load_retrieval_data` takes; one on the hub and MS MARCO's files are left to it.
        splits: The splits that the caller needs.
        options: Names of columns, and the share that is held out for a missing split.

    Raises:
        FileNotFoundError: If the folder or one of its files does not exist.
        ValueError: If there is no such split.
        DataError: If a file lacks a column.
    """
    options = options or SourceOptions()
    path = Path(source)
    if source == "docstrings" or source.startswith(PREFIX) or is_msmarco(path):
        return
    if not is_table(source):
        missing_shares(source, list(beir_files(path)[2]), splits, options.hold_out)
        return
    files = table_files(path)
    for file in files.values():
        names = first_columns(file, _headers(options))
        if names:
            find_roles(str(file), names, options.columns)
        if not names or (file == path and SPLIT in names):
            return  # the rows name the splits
    if files:
        missing_shares(source, list(files), splits, options.hold_out)


def load_retrieval_data(
    source: str, splits: Sequence[str] | None = None, options: SourceOptions | None = None
) -> RetrievalData:
    """Load a retrieval set into memory by the name that a command line takes.

    Args:
        source: One of these: `docstrings` (the embedded corpus); a folder in BEIR layout; a folder of MS
            MARCO's files, or triples of ids in it; a file of rows of texts (.csv, .tsv, .parquet, .jsonl,
            each also .gz or .zst); a folder of such files by split, or of `save_to_disk`;
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
    if not source.startswith(PREFIX) and _is_pairs(source):
        pairs = _open_pairs(source, options, splits or ())
        return pairs.retrieval() if splits is None else pairs.retrieval().only(splits)
    # With a share to hold out, the splits that exist are known only after all have been read.
    wanted = None if options.hold_out else splits
    if source == "docstrings":
        loaded = load_docstrings()
    elif source.startswith(PREFIX):
        loaded = load_hub(source, columns=options.columns) if options.columns else load_hub(source)
    elif is_msmarco(Path(source)):
        loaded = load_msmarco(source, wanted)
    else:
        loaded = load_beir(source, wanted)
    if splits is None:
        return loaded
    fractions = missing_shares(loaded.name, loaded.splits, splits, options.hold_out)
    return (hold_out(loaded, fractions) if fractions else loaded).only(splits)


def load_documents(source: str, options: SourceOptions | None = None) -> Mapping[str, str]:
    """Load the documents of a set; queries and judgements of a folder need not exist.

    Args:
        source: A name that `load_retrieval_data` takes.
        options: Names of columns.

    Returns:
        Document id -> text.

    Raises:
        FileNotFoundError: If the folder or one of its files does not exist.
        DataError: If the data cannot be used; the message names file and line.
    """
    if source.startswith(PREFIX) or source == "docstrings" or _is_pairs(source):
        return load_retrieval_data(source, options=options).corpus
    path = Path(source)
    return load_msmarco_corpus(path) if is_msmarco(path) else load_corpus(path)


def load_training_data(
    source: str,
    measured_splits: Sequence[str],
    options: SourceOptions | None = None,
    *,
    given_rows: bool = True,
    documents: int | None = None,
    seed: int = 0,
) -> TrainingData:
    """Load what a recipe trains on and measures; the rows of tables stay on the disk.

    Args:
        source: A name that `load_retrieval_data` takes.
        measured_splits: The splits that are measured, such as test.
        options: Names of columns, and the share that is held out for a missing split.
        given_rows: Whether the rows of tables are trained on as they are. If negatives are to be mined for
            them, they are read into memory as a retrieval set instead.
        documents: Number of documents that are searched: the judged ones and a random sample; None takes all.
        seed: Seed of the sample.

    Returns:
        The data.

    Raises:
        FileNotFoundError: If the folder or one of its files does not exist.
        ValueError: If there is no such split, or if `documents` is below 1.
        DataError: If the data cannot be used; the message names file and line.
    """
    options = options or SourceOptions()
    if given_rows and _is_pairs(source):
        pairs = _open_pairs(source, options, [TRAIN, *measured_splits])
        return TrainingData(pairs.retrieval(measured_splits, documents, seed), pairs.documents(), pairs=pairs)
    loaded = load_retrieval_data(source, [TRAIN, *measured_splits], options)
    measured = sample_corpus(loaded, documents, measured_splits, seed)
    texts = loaded.corpus.texts if isinstance(loaded.corpus, Collection) else list(loaded.corpus.values())
    return TrainingData(measured, texts, loaded)


def _is_pairs(source: str) -> bool:
    """Return whether a source holds rows of texts, and no documents and judgements by id."""
    if source.startswith(PREFIX):
        return not has_beir_layout(source)
    return source != "docstrings" and not is_msmarco(Path(source)) and is_table(source)


def _open_pairs(source: str, options: SourceOptions, wanted: Sequence[str]) -> PairData:
    """Open rows of texts, and hold out the splits that are wanted and missing."""
    name = split_hub_name(source)[0] if source.startswith(PREFIX) else source
    pairs = PairData.of_tables(name, load_tables(source, _headers(options)), options.columns)
    fractions = missing_shares(name, list(pairs.splits), wanted, options.hold_out)
    return pairs.hold_out(fractions) if fractions else pairs


def _headers(options: SourceOptions) -> tuple[str, ...]:
    """Return the words that make the first line of a .tsv file a header."""
    return (*HEADERS, *options.columns.values())
