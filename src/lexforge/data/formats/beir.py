"""BEIR folders: corpus.jsonl, queries.jsonl and qrels/<split>.tsv, each plain or compressed.

The layout is that of Thakur et al., "BEIR: A Heterogeneous Benchmark for Zero-shot Evaluation of Information
Retrieval Models" (arXiv 2104.08663). Lines end at a line feed and nowhere else, because texts may hold U+2028
or U+0085. The files are not read by `datasets`, whose errors name no line, and which gives values of a wrong
type another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lexforge.common.types import DataError
from lexforge.data.faults import Faults
from lexforge.data.lines import (
    as_number,
    excerpt,
    json_objects,
    numbered_lines,
    parse_grade,
    require_texts,
    unpacked,
)
from lexforge.data.retrieval_data import RetrievalData, collect_judgements, collect_texts, join_titles
from lexforge.data.splits import TRAIN, missing_split, no_judgements, split_name
from lexforge.settings import SourceOptions
from lexforge.storage.files import write_text

NAME = "a folder in BEIR layout (corpus.jsonl, queries.jsonl and qrels/<split>.tsv)"
QRELS_ENDINGS = (".tsv", ".txt", ".trec", ".qrels")
_HEADER = ("query-id", "corpus-id", "score")


def matches(source: str) -> bool:
    """Return whether a source is a folder with documents or judgements in BEIR layout, or `corpus.jsonl`."""
    folder = Path(source)
    return is_corpus(folder) or (folder / "qrels").is_dir() or any(folder.glob("corpus.jsonl*"))


def is_corpus(path: Path) -> bool:
    """Return whether a path is a file `corpus.jsonl`, plain or compressed."""
    return unpacked(path) == "corpus.jsonl" and path.is_file()


def split_names(source: str, options: SourceOptions) -> list[str]:
    """Return the splits that the files of judgements are named after; see `Format.split_names`."""
    return list(_qrels_files(Path(source)))


def open(source: str, options: SourceOptions, splits: Sequence[str] | None, faults: Faults) -> RetrievalData:
    """Read a folder whole into memory; see `Format.open`.

    It holds `corpus.jsonl` (`_id`, `text`, optional `title`), `queries.jsonl` (`_id`, `text`) and
    `qrels/<split>.tsv`: query id, document id, integer grade, or TREC's four columns with an iteration after
    the query id; the ending may be .txt, .trec or .qrels as well. The split `validation` is called `dev`.
    Each file may be compressed and end in .gz or .zst. Only the judgements of `splits` are read.

    The set is named after the folder. A document's text is `title + " " + text`, stripped; it may be blank.

    Raises:
        FileNotFoundError: If the folder or one of its parts is missing.
        ValueError: If a split does not exist.
        DataError: If a file of texts is wrong: bytes that are not UTF-8, malformed JSON, a missing field or
            one of another type, a repeated id. The message names file and line.
    """
    folder = Path(source)
    qrels_files = _qrels_files(folder)
    for split in splits or ():
        if split not in qrels_files:
            raise missing_split(str(folder), split, list(qrels_files))
    file = _part(folder, "corpus.jsonl")
    corpus = collect_texts(str(file), join_titles(_records(file)), blank_allowed=True)
    queries = load_queries(folder)
    qrels = {}
    for split in qrels_files if splits is None else splits:
        file = qrels_files[split]
        rows, training = judgements_of_file(file, faults), split == TRAIN
        qrels[split] = collect_judgements(str(file), rows, corpus, queries, training=training, faults=faults)
    return RetrievalData(folder.resolve().name, corpus, queries, qrels)


def titled(source: str, options: SourceOptions, notes: list[str]) -> Iterator[tuple[object, str, str, str]]:
    """Yield the documents with their titles; see `Format.titled`."""
    path = Path(source)
    return _records(path if is_corpus(path) else _part(path, "corpus.jsonl"))


def load_queries(folder: str | Path) -> dict[str, str]:
    """Read only the queries of a BEIR folder; documents and judgements need not exist.

    Args:
        folder: A folder with `queries.jsonl`, plain or compressed, as `open` reads it.

    Returns:
        Query id -> text, in the order of the file.

    Raises:
        FileNotFoundError: If there is no such folder or file.
        DataError: If the file is wrong, as for `open`.
    """
    file = _part(Path(folder), "queries.jsonl")
    return collect_texts(str(file), join_titles(_records(file)), blank_allowed=False)


def load_teacher_scores(path: str | Path, data: RetrievalData) -> dict[str, dict[str, float]]:
    """Read a teacher's scores of (query, document) pairs, for `rows_of_judgements(scores=...)`.

    Args:
        path: A file with tabs between query id, document id and score, like qrels, plain or compressed
            (.gz, .zst). Its header is optional, and a score is any finite number.
        data: The set to which the ids belong.

    Returns:
        Query id -> document id -> score.

    Raises:
        FileNotFoundError: If there is no such file.
        DataError: If an id is unknown, if a pair is scored twice, or if a score is not a finite number. The
            message names file and line.
    """
    path = _find(Path(path))
    scores: dict[str, dict[str, float]] = {}
    for line, query_id, document_id, text in _triples(path):
        where = f"{path}:{line}"
        score = as_number(text)
        if score is None:
            raise DataError(f"{where}: the score must be a finite number; received {excerpt(text)}")
        if query_id not in data.queries or document_id not in data.corpus:
            raise DataError(f"{where}: {query_id!r} or {document_id!r} is not an id of {data.name}")
        if document_id in scores.setdefault(query_id, {}):
            raise DataError(f"{where}: query {query_id!r} scores {document_id!r} a second time")
        scores[query_id][document_id] = score
    if not scores:
        raise DataError(f"{path} holds no score")
    return scores


def write_teacher_scores(path: str | Path, scores: Iterable[tuple[str, str, float]]) -> None:
    """Write a teacher's scores, for `load_teacher_scores`.

    Args:
        path: The file; an existing one is replaced. A name that ends in .gz or .zst is compressed.
        scores: (query id, document id, score) in the order of the lines; scores are finite.

    Raises:
        DataError: If an id holds a tab or a line feed, which end its column, or if a score is not finite.
    """
    lines = ["\t".join(_HEADER)]
    for query, document, score in scores:
        for name in (query, document):
            if "\t" in name or "\n" in name or name != name.rstrip("\r"):
                raise DataError(f"an id in a table must hold neither tab nor line feed; received {name!r}")
        if not math.isfinite(score):
            raise DataError(f"query {query!r}, document {document!r}: the score {score} is not finite")
        lines.append(f"{query}\t{document}\t{float(score)!r}")
    write_text(path, "".join(f"{line}\n" for line in lines))


def _find(path: Path) -> Path:
    """Return the file itself or its compressed twin; where several exist, it is unclear which one counts."""
    twins = [path, path.with_name(path.name + ".gz"), path.with_name(path.name + ".zst")]
    found = [candidate for candidate in twins if candidate.is_file()]
    if not found:
        raise FileNotFoundError(f"there is no file {path}, plain or compressed (.gz, .zst)")
    if len(found) > 1:
        raise DataError(f"both {found[0]} and {found[1].name} exist; keep one")
    return found[0]


def _part(folder: Path, name: str) -> Path:
    """Return a file of a folder; it may be compressed."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder")
    return _find(folder / name)


def _qrels_files(source: Path) -> dict[str, Path]:
    """Return split -> file of judgements, if no part of the folder is missing; none is read."""
    if is_corpus(source):
        raise no_judgements(str(source), "the file holds documents")
    for name in ("corpus.jsonl", "queries.jsonl"):
        _part(source, name)
    folder = source / "qrels"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder")
    files: dict[str, Path] = {}
    for name in sorted({unpacked(path) for path in folder.iterdir() if path.is_file()}):
        stem, dot, ending = name.rpartition(".")
        if dot + ending in QRELS_ENDINGS:
            if (split := split_name(stem)) in files:
                raise DataError(f"both {files[split]} and {name} hold the split {split!r}; keep one")
            files[split] = _find(folder / name)
    if not files:
        known = ", ".join(QRELS_ENDINGS)
        raise FileNotFoundError(f"{folder} holds no file {known}, plain or compressed (.gz, .zst)")
    return files


def _records(path: Path) -> Iterator[tuple[object, str, str, str]]:
    """Yield (file and line, id, title, text) for each record of a JSON-lines file."""
    for number, record in json_objects(path, ("_id", "text")):
        where = f"{path}:{number}"
        yield where, record["_id"], *record_parts(where, record)


def record_parts(where: object, record: Mapping[str, Any]) -> tuple[str, str]:
    """Return title and text of a document or query.

    Args:
        where: Where the record stands, for error messages: file and line, or data set and row.
        record: A mapping with `_id`, `text` and optionally `title`. A title of None counts as missing,
            because `datasets` fills absent fields with None.

    Returns:
        The title, which may be blank, and the text.

    Raises:
        DataError: If one of the three is not a string.
    """
    title = "" if record.get("title") is None else record["title"]
    require_texts(where, _id=record["_id"], text=record["text"], title=title)
    return title, record["text"]


def _triples(path: Path, faults: Faults | None = None) -> Iterator[tuple[int, str, str, str]]:
    """Yield (line, query id, document id, third field) for each row of a table.

    A first row whose third field is no number is a header, which must be BEIR's. `faults` count rows
    of other columns, which are then left out; without them the first is refused.
    """
    for number, line in numbered_lines(path):
        fields = line.split("\t")
        if len(fields) != 3 and len(words := line.split()) == 4:  # TREC: query, iteration, document, grade
            fields = [words[0], words[2], words[3]]
        if len(fields) != 3:
            message = "expected query id, document id and score with tabs between them, or the four columns "
            message += f"of TREC; received {excerpt(line)}"
            if faults is None:
                raise DataError(f"{path}:{number}: {message}")
            faults.rows += 1
            faults.bad("judgements of other columns", f"{path}:{number}", message, excerpt(line))
            continue
        if number == 1 and not _is_number(fields[2]):
            if tuple(fields) != _HEADER:
                raise DataError(
                    f"{path}:1: expected the header {' '.join(_HEADER)} or a first judgement; "
                    f"received {excerpt(line)}"
                )
            continue
        yield number, fields[0], fields[1], fields[2]


def _is_number(text: str) -> bool:
    """Return whether `float` reads the text; "nan" and "inf" count, because they are data and no header."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def judgements_of_file(path: Path, faults: Faults) -> Iterator[tuple[str, str, str, int]]:
    """Yield (file and line, query id, document id, grade) for each judgement of a file.

    Args:
        path: A table of three columns with BEIR's header or none, or of TREC's four columns.
        faults: Counts lines of other columns and grades that `check_grade` refuses, which are left out.

    Raises:
        DataError: If the header is another one.
    """
    for number, query_id, document_id, score in _triples(path, faults):
        where = f"{path}:{number}"
        try:
            grade = parse_grade(score)
        except DataError as error:
            faults.rows += 1
            faults.bad("wrong grades", where, str(error), excerpt(score))
        else:
            yield where, query_id, document_id, grade
