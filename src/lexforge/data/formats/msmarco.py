"""MS MARCO's own files: collection.tsv, queries.*.tsv, qrels.*.tsv and triples of ids.

Bajaj et al., "MS MARCO: A Human Generated MAchine Reading COmprehension Dataset" (arXiv 1611.09268). The
files have no header. Triples of texts (`triples.train.small.tsv`) are a table, which
`lexforge.data.formats.rows` reads. `lexforge.data.collection` says why `datasets` does not read these files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from lexforge.common.types import DataError, Qrels
from lexforge.data.collection import Collection
from lexforge.data.faults import Faults
from lexforge.data.formats.beir import judgements_of_file
from lexforge.data.lines import excerpt, numbered_lines
from lexforge.data.retrieval_data import RetrievalData, collect_judgements, collect_texts, untitled
from lexforge.data.splits import TEST, TRAIN, missing_split
from lexforge.settings import SourceOptions

logger = logging.getLogger(__name__)

NAME = "a folder of MS MARCO's files (collection.tsv, queries.*.tsv, qrels.*.tsv), or its qidpidtriples.*.tsv"


def matches(source: str) -> bool:
    """Return whether a source is a folder of MS MARCO's files, or triples of ids in such a folder."""
    path = Path(source)
    folder = path.parent if path.name.startswith("qidpidtriples.") else path
    return folder.is_dir() and bool(_files(folder, "collection"))


def split_names(source: str, options: SourceOptions) -> list[str]:
    """Return the splits that the files of judgements are named after; see `Format.split_names`."""
    return list(_qrels_files(Path(source)))


def open(source: str, options: SourceOptions, splits: Sequence[str] | None, faults: Faults) -> RetrievalData:
    """Read queries and judgements; the collection stays on the disk. See `Format.open`.

    A folder has `collection.tsv`, `queries.<split>.tsv` and `qrels.<split>.tsv`. A file
    `qidpidtriples.<...>.tsv` in it holds the judgements of the split `train`: positives with grade 1,
    negatives with grade 0. Each file may end in .gz or .zst. Splits are named after the files: train, dev,
    dev.small. Where there are no judgements named test, `test` is `dev.small`, or else `dev`, as in BEIR,
    because those of MS MARCO's own test are not public.

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
        queries |= collect_texts(str(file), _texts(file), blank_allowed=False)
    if not queries:
        raise FileNotFoundError(f"{folder} holds no file queries.*.tsv")
    corpus = Collection(_files(folder, "collection")[0])
    qrels: dict[str, Qrels] = {}
    for split in list(qrels_files) if splits is None else splits:
        file = qrels_files[split]
        if file == path:
            qrels[split] = _judgements_of_triples(file, corpus, queries)
        else:
            rows, training = judgements_of_file(file, faults), split == TRAIN
            qrels[split] = collect_judgements(
                str(file), rows, corpus, queries, training=training, faults=faults
            )
    return RetrievalData(folder.resolve().name, corpus, queries, qrels)


def documents(source: str, options: SourceOptions) -> Collection:
    """Open the collection alone; see `Format.documents`."""
    return Collection(_files(Path(source), "collection")[0])


def titled(source: str, options: SourceOptions, notes: list[str]) -> Iterator[tuple[object, str, str, str]]:
    """Yield the documents of the collection, which have no titles; see `Format.titled`."""
    return untitled(source, documents(source, options))


def _qrels_files(path: Path) -> dict[str, Path]:
    """Return split -> file of judgements of a folder; triples of ids in it are those of train."""
    folder = path.parent if path.is_file() else path
    found = {_split_of(file, "qrels."): file for file in _files(folder, "qrels.")}
    for known in ("dev.small", "dev"):
        if TEST not in found and known in found:
            logger.info("%s: the split test is %s", folder, found[known].name)
            found[TEST] = found[known]
    return found | ({TRAIN: path} if path.is_file() else {})


def _files(folder: Path, beginning: str) -> list[Path]:
    """Return the tables of a folder whose names begin so."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.name.startswith(beginning)
        and path.name.removesuffix(".gz").removesuffix(".zst").endswith((".tsv", ".txt"))
    )


def _split_of(file: Path, beginning: str) -> str:
    """Return the split that a name such as qrels.dev.small.tsv holds."""
    name = file.name.removesuffix(".gz").removesuffix(".zst")
    return name.removeprefix(beginning).removesuffix(".tsv").removesuffix(".txt")


def _texts(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (file and line, id, text) for each line of queries."""
    for number, line in numbered_lines(path):
        key, tab, text = line.partition("\t")
        if not tab:
            raise DataError(f"{path}:{number}: expected an id, a tab and a text; received {excerpt(line)}")
        yield f"{path}:{number}", key, text


def _judgements_of_triples(path: Path, corpus: Collection, queries: dict[str, str]) -> Qrels:
    """Read lines of the ids of a query, a positive and a negative; a pair may occur many times."""
    judgements: Qrels = {}
    for number, line in numbered_lines(path):
        fields = line.split()
        known = len(fields) == 3 and fields[0] in queries and fields[1] in corpus and fields[2] in corpus
        if not known:
            raise DataError(
                f"{path}:{number}: expected the ids of a query, a positive and a negative that exist; "
                f"received {excerpt(line)}"
            )
        grades = judgements.setdefault(fields[0], {})
        grades[fields[1]] = 1
        grades.setdefault(fields[2], 0)
    if not judgements:
        raise DataError(f"{path} holds no triple")
    return judgements
