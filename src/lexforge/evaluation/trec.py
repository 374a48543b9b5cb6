"""TREC runs and judgements as text files; a name that ends in .gz is compressed."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO

from lexforge.data import DataError
from lexforge.data.grades import check_grade, parse_grade
from lexforge.evaluation.metrics import Qrels, Run

BYTE_ORDER_MARK = "\ufeff"
MAX_LINE_BYTES = 2**20  # a longer line is refused unread: a small gzip file of one must not fill the memory


def check_run_ids(queries: Iterable[str], documents: Iterable[str]) -> None:
    """Refuse ids that `write_run` could not write; called before the work whose run is to be written.

    Args:
        queries: Ids of the queries.
        documents: Ids of all documents that may be found.

    Raises:
        ValueError: An id is empty, holds white space or begins with a byte order mark.
    """
    for query in queries:
        _check_token(query, "query id")
    for document in documents:
        _check_token(document, "document id")


def write_run(path: str | Path, run: Run, tag: str = "lexforge") -> None:
    """Write `query Q0 document rank score tag` lines, ranked by score, ties in the dict's order.

    Args:
        path: The file; what it held is replaced.
        run: `{query id: {document id: score}}`; from `Hits.to_run` no two scores of a query are equal.
        tag: Last column.

    Raises:
        ValueError: An id that `check_run_ids` refuses, a tag like it, or a score that is not finite.
    """
    _check_token(tag, "tag")
    lines = []
    for query, documents in run.items():
        _check_token(query, "query id")
        order = sorted(documents, key=lambda document: -documents[document])
        for rank, document in enumerate(order, start=1):
            _check_token(document, "document id")
            score = documents[document]
            if not math.isfinite(score):
                raise ValueError(f"query {query!r}, document {document!r}: score {score} is not finite")
            lines.append(f"{query} Q0 {document} {rank} {float(score)!r} {tag}\n")
    _write(path, "".join(lines))


def read_run(
    path: str | Path, queries: Collection[str] | None = None, documents: Collection[str] | None = None
) -> Run:
    """Read a run.

    Args:
        path: The file: six columns, separated by white space.
        queries: Where given, a query id outside it is refused.
        documents: Where given, a document id outside it is refused.

    Returns:
        `{query id: {document id: score}}` in the order of the lines; the rank column is not read.

    Raises:
        FileNotFoundError: There is no such file.
        DataError: Broken gzip data, a byte order mark, a line that is not a run's, an unknown id, or
            a document twice for one query; the message names file and line.
    """
    run: Run = {}
    for where, (query, _, document, _, text, _) in _rows(path, "query Q0 document rank score tag"):
        _check_known(where, "query", query, queries)
        _check_known(where, "document", document, documents)
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise DataError(f"{where}: score {text[:40]!r} is not a finite number")
        if run.setdefault(query, {}).setdefault(document, score) is not score:
            raise DataError(f"{where}: document {document!r} is there twice for query {query!r}")
    return run


def write_qrels(path: str | Path, qrels: Qrels) -> None:
    """Write `query 0 document grade` lines.

    Args:
        path: The file; what it held is replaced.
        qrels: `{query id: {document id: grade}}`.

    Raises:
        ValueError: An id that `check_run_ids` refuses, or a grade that `check_grade` refuses.
    """
    lines = []
    for query, documents in qrels.items():
        _check_token(query, "query id")
        for document, grade in documents.items():
            _check_token(document, "document id")
            number = check_grade(f"query {query!r}, document {document!r}", grade)
            lines.append(f"{query} 0 {document} {number}\n")
    _write(path, "".join(lines))


def read_qrels(path: str | Path) -> Qrels:
    """Read judgements.

    Args:
        path: The file: four columns, separated by white space.

    Returns:
        `{query id: {document id: grade}}`.

    Raises:
        FileNotFoundError: There is no such file.
        DataError: Broken gzip data, a byte order mark, a line that is not a judgement, or a pair
            judged twice; the message names file and line.
    """
    qrels: Qrels = {}
    for where, (query, _, document, text) in _rows(path, "query 0 document grade"):
        grade = parse_grade(where, text)
        if document in qrels.setdefault(query, {}):
            raise DataError(f"{where}: document {document!r} is judged twice for query {query!r}")
        qrels[query][document] = grade
    return qrels


def _rows(path: str | Path, layout: str) -> Iterator[tuple[str, list[str]]]:
    """Each line that is not blank as its place and its columns."""
    with gzip.open(path, "rb") if str(path).endswith(".gz") else open(path, "rb") as file:
        number = 0
        while line := _line(path, number, file):
            number += 1
            where = f"{path}:{number}"
            try:
                columns = line.decode("utf-8").split()
            except UnicodeDecodeError as error:
                raise DataError(f"{where}: not UTF-8: {error}") from error
            if number == 1 and columns and columns[0].startswith(BYTE_ORDER_MARK):
                raise DataError(f"{where}: a byte order mark; allowed is UTF-8 without one")
            if columns and len(columns) != len(layout.split()):
                raise DataError(f"{where}: {len(columns)} columns; a line is `{layout}`")
            if columns:
                yield where, columns


def _line(path: str | Path, number: int, file: IO[bytes] | gzip.GzipFile) -> bytes:
    """The line after line `number`."""
    try:
        line = file.readline(MAX_LINE_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: broken gzip data after line {number}: {error}") from error
    if len(line) > MAX_LINE_BYTES:
        raise DataError(f"{path}:{number + 1}: the line is longer than {MAX_LINE_BYTES:,} bytes")
    return line


def _write(path: str | Path, text: str) -> None:
    data = text.encode("utf-8")
    Path(path).write_bytes(gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def _check_token(token: str, what: str) -> None:
    if token.split() != [token] or token.startswith(BYTE_ORDER_MARK):
        raise ValueError(
            f"{what} {token!r}: a TREC file separates its columns by white space; allowed are one or more "
            "characters without any, and no byte order mark before them"
        )


def _check_known(where: str, what: str, name: str, known: Collection[str] | None) -> None:
    if known is not None and name not in known:
        raise DataError(f"{where}: {what} {name!r} is not in the data")
