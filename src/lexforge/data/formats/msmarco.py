"""MS MARCO's own files: collection.tsv, queries.*.tsv, qrels.*.tsv and triples of ids.

Bajaj et al., "MS MARCO: A Human Generated MAchine Reading COmprehension Dataset" (arXiv 1611.09268). The
files have no header. Triples of texts (`triples.train.small.tsv`) are a table, which
`lexforge.data.formats.rows` reads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from lexforge.common.types import DataError, Qrels
from lexforge.data.collection import Collection
from lexforge.data.faults import Faults
from lexforge.data.formats.beir import judgements_of_file
from lexforge.data.lines import excerpt, numbered_lines, unpacked
from lexforge.data.retrieval_data import RetrievalData, collect_judgements, collect_texts, untitled
from lexforge.data.splits import DEV, TEST, TRAIN, missing_split
from lexforge.settings import SourceOptions

logger = logging.getLogger(__name__)

COLLECTION = "collection."
SMALL = "dev.small"
NAME = "a folder of MS MARCO's files (collection.tsv, queries.*.tsv, qrels.*.tsv), or its qidpidtriples.*.tsv"


def matches(source: str) -> bool:
    """Return whether a source is a folder of MS MARCO's files, or triples of ids in such a folder."""
    path = Path(source)
    triples = path.name.startswith("qidpidtriples.")
    folder = path.parent if triples else path
    if not folder.is_dir() or not (found := _files(folder, COLLECTION)):
        return False
    # A folder of documents may hold a text of this name.
    known = triples or _files(folder, "queries") or _files(folder, "qrels.")
    return bool(known) or unpacked(found[0]).endswith(".tsv")


def split_names(source: str, options: SourceOptions) -> list[str]:
    """Return the splits that the files of judgements are named after; see `Format.split_names`."""
    return list(_qrels_files(Path(source)))


def open(source: str, options: SourceOptions, splits: Sequence[str] | None, faults: Faults) -> RetrievalData:
    """Read queries and judgements; the collection stays on the disk. See `Format.open`.

    A folder has `collection.tsv`, `queries.<split>.tsv` and `qrels.<split>.tsv`. A file
    `qidpidtriples.<...>.tsv` in it holds the judgements of the split `train`: positives with grade 1,
    negatives with grade 0. Each file may end in .gz or .zst. Splits are named after the files: train, dev,
    dev.small. Where there are no judgements named test, `test` is `dev.small`, or else `dev`, as in BEIR,
    because those of MS MARCO's own test are not public. `dev` then has the other queries, if there are any.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If there is no such split.
        DataError: If anything inside a file is wrong; the message names file and line.
    """
    path = Path(source)
    folder = path.parent if path.is_file() else path
    qrels_files = _qrels_files(path)
    for split in splits or ():
        if split not in qrels_files:
            raise missing_split(str(folder), split, list(qrels_files))
    queries: dict[str, str] = {}
    for file in _files(folder, "queries"):
        found = collect_texts(str(file), _texts(file), blank_allowed=False)
        # Files may share queries, as those of dev and dev.small do, but not the numbers of others.
        if other := next((key for key in found if queries.get(key, found[key]) != found[key]), None):
            raise DataError(
                f"{file}: the id {other!r} is that of another query in a file before it; received "
                f"{excerpt(found[other])} and {excerpt(queries[other])}"
            )
        queries |= found
    if not queries:
        raise FileNotFoundError(f"{folder} holds no file queries.*.tsv")
    corpus = collection(source)
    qrels: dict[str, Qrels] = {}
    for split in list(qrels_files) if splits is None else splits:
        file = qrels_files[split]
        if file == path:
            qrels[split] = _judgements_of_triples(file, corpus, queries, faults)
        else:
            rows, training = judgements_of_file(file, faults), split == TRAIN
            if split == DEV and qrels_files[TEST] == qrels_files.get(SMALL):
                tested = _queries_of(qrels_files[TEST])
                rest = [row for row in rows if row[1] not in tested]
                if not rest and splits is None:  # nobody has asked for it
                    continue
                if not rest:
                    raise DataError(f"{file}: all of its queries are those of the split test")
                rows = iter(rest)
            qrels[split] = collect_judgements(
                str(file), rows, corpus, queries, training=training, faults=faults
            )
    return RetrievalData(folder.resolve().name, corpus, queries, qrels)


def collection(source: str) -> Collection:
    """Open the documents alone, which stay on the disk.

    Args:
        source: What `matches` accepts.
    """
    path = Path(source)
    found = _files(path.parent if path.is_file() else path, COLLECTION)
    if len(found) > 1:
        raise DataError(
            f"expected one file {COLLECTION}*; both {found[0]} and {found[1].name} exist; keep one"
        )
    return Collection(found[0])


def titled(source: str, options: SourceOptions, notes: list[str]) -> Iterator[tuple[object, str, str, str]]:
    """Yield the documents of the collection, which have no titles; see `Format.titled`."""
    return untitled(source, collection(source))


def _qrels_files(path: Path) -> dict[str, Path]:
    """Return split -> file of judgements of a folder; triples of ids in it are those of train."""
    folder = path.parent if path.is_file() else path
    found = {
        unpacked(file).removeprefix("qrels.").removesuffix(".tsv").removesuffix(".txt"): file
        for file in _files(folder, "qrels.")  # such as qrels.dev.small.tsv
    }
    if TEST not in found and SMALL in found:
        logger.info("%s: the split test is %s, and dev has the other queries", folder, found[SMALL].name)
        found[TEST] = found[SMALL]
    elif TEST not in found and DEV in found:
        logger.info("%s: the split test is %s, and there is no dev", folder, found[DEV].name)
        found[TEST] = found.pop(DEV)
    if path.is_file():
        found[TRAIN] = path
    if not found:
        raise FileNotFoundError(f"{folder} holds no file qrels.*.tsv, and judgements are needed")
    return found


def _files(folder: Path, beginning: str) -> list[Path]:
    """Return the tables of a folder whose names begin so.

    Raises:
        DataError: If one is there twice, plain and compressed.
    """
    found = sorted(
        path
        for path in folder.iterdir()
        if path.name.startswith(beginning) and unpacked(path).endswith((".tsv", ".txt"))
    )
    for first, second in pairwise(found):
        if unpacked(first) == unpacked(second):
            raise DataError(f"both {first} and {second.name} exist; keep one")
    return found


def _queries_of(path: Path) -> set[str]:
    """Return the ids of the queries that a file judges; its own split tells what is wrong in it."""
    return {query for _, query, _, _ in judgements_of_file(path, Faults(str(path), "skip"))}


def _texts(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (file and line, id, text) for each line of queries."""
    for number, line in numbered_lines(path):
        key, tab, text = line.partition("\t")
        if not tab:
            raise DataError(f"{path}:{number}: expected an id, a tab and a text; received {excerpt(line)}")
        yield f"{path}:{number}", key, text


def _judgements_of_triples(path: Path, corpus: Collection, queries: dict[str, str], faults: Faults) -> Qrels:
    """Read lines of the ids of a query, a positive and a negative; a pair may occur many times."""
    judgements: Qrels = {}
    for number, line in numbered_lines(path):
        fields = line.split()
        faults.rows += 1
        known = len(fields) == 3 and fields[0] in queries and fields[1] in corpus and fields[2] in corpus
        if not known:
            message = (
                f"expected the ids of a query, a positive and a negative that exist; received {excerpt(line)}"
            )
            faults.bad("triples of unknown ids", f"{path}:{number}", message, excerpt(line))
            continue
        if not corpus[fields[1]]:
            faults.told("answers without text, left out of train", f"{path}:{number}", fields[1])
            continue
        grades = judgements.setdefault(fields[0], {})
        grades[fields[1]] = 1
        grades.setdefault(fields[2], 0)
    if not judgements:
        faults.finish()
        raise DataError(f"{path} holds no triple")
    return judgements
