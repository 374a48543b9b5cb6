"""Read and write TREC runs and judgements as text files; a file whose name ends in .gz is compressed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from lexforge.common.types import Qrels, Run
from lexforge.data import DataError
from lexforge.data.lines import BYTE_ORDER_MARK, check_grade, numbered_lines, parse_grade
from lexforge.storage.files import write_text


def check_run_ids(queries: Iterable[str], documents: Iterable[str]) -> None:
    """Refuse ids that `write_run` cannot write; to be called before the work whose run is to be written.

    Args:
        queries: Ids of the queries.
        documents: Ids of all documents that may be found.

    Raises:
        ValueError: If an id is empty, contains white space or begins with a byte order mark.
    """
    for query in queries:
        _check_token(query, "query id")
    for document in documents:
        _check_token(document, "document id")


def write_run(path: str | Path, run: Run, tag: str = "lexforge") -> None:
    """Write a run as lines of `query Q0 document rank score tag`, ranked by score.

    Documents of equal score are ranked in the order of the dict; in a run from `Hits.to_run` no two scores of
    a query are equal.

    Args:
        path: The file to write; an existing file is replaced.
        run: `{query id: {document id: score}}`.
        tag: Name of the system, for the last column.

    Raises:
        ValueError: If `check_run_ids` refuses an id, the tag is not such a word, or a score is not finite.
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
                raise ValueError(
                    f"query {query!r}, document {document!r}: the score must be finite; received {score}"
                )
            lines.append(f"{query} Q0 {document} {rank} {float(score)!r} {tag}\n")
    write_text(path, "".join(lines))


def read_run(
    path: str | Path, queries: Collection[str] | None = None, documents: Collection[str] | None = None
) -> Run:
    """Read a run.

    Args:
        path: The file, with six columns that are separated by white space.
        queries: All allowed query ids; None allows any.
        documents: All allowed document ids; None allows any.

    Returns:
        `{query id: {document id: score}}` in the order of the lines; the column of ranks is not read.

    Raises:
        FileNotFoundError: If there is no such file.
        DataError: If the gzip data is broken, a line is not one of a run, an id is not allowed, or a document
            occurs twice for one query. The message names the file and the line.
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
            raise DataError(f"{where}: the score must be a finite number; received {text[:40]!r}")
        if run.setdefault(query, {}).setdefault(document, score) is not score:
            raise DataError(f"{where}: document {document!r} occurs twice for query {query!r}")
    return run


def write_qrels(path: str | Path, qrels: Qrels) -> None:
    """Write judgements as lines of `query 0 document grade`.

    Args:
        path: The file to write; an existing file is replaced.
        qrels: `{query id: {document id: grade}}`.

    Raises:
        ValueError: If `check_run_ids` refuses an id, or a grade is not an integer from -9999 to 9999.
    """
    lines = []
    for query, documents in qrels.items():
        _check_token(query, "query id")
        for document, grade in documents.items():
            _check_token(document, "document id")
            number = check_grade(f"query {query!r}, document {document!r}", grade)
            lines.append(f"{query} 0 {document} {number}\n")
    write_text(path, "".join(lines))


def read_qrels(path: str | Path) -> Qrels:
    """Read judgements.

    Args:
        path: The file, with four columns that are separated by white space.

    Returns:
        `{query id: {document id: grade}}`.

    Raises:
        FileNotFoundError: If there is no such file.
        DataError: If the gzip data is broken, a line is not a judgement, or a pair is judged twice. The
            message names the file and the line.
    """
    qrels: Qrels = {}
    for where, (query, _, document, text) in _rows(path, "query 0 document grade"):
        grade = parse_grade(where, text)
        if document in qrels.setdefault(query, {}):
            raise DataError(f"{where}: document {document!r} is judged twice for query {query!r}")
        qrels[query][document] = grade
    return qrels


def _rows(path: str | Path, layout: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each line that is not blank as its place (`file:line`) and its columns.

    Args:
        path: The file.
        layout: The names of the columns, separated by spaces.

    Raises:
        DataError: If `numbered_lines` refuses the file, or a line has another number of columns.
    """
    for number, line in numbered_lines(Path(path)):
        where = f"{path}:{number}"
        columns = line.split()
        if columns and len(columns) != len(layout.split()):
            raise DataError(
                f"{where}: a line must have the columns `{layout}`; received {len(columns)} columns"
            )
        if columns:
            yield where, columns


def _check_token(token: str, what: str) -> None:
    """Refuse a word that would shift the columns of its line, or be read as something else.

    Raises:
        ValueError: If it is empty, contains white space or begins with a byte order mark.
    """
    if token.split() != [token] or token.startswith(BYTE_ORDER_MARK):
        raise ValueError(
            f"{what} {token!r}: a TREC file separates its columns by white space; an id or tag must be one "
            "or more characters without white space, and must not begin with a byte order mark"
        )


def _check_known(where: str, what: str, name: str, known: Collection[str] | None) -> None:
    """Refuse an id that is not among the allowed ones, if these are given.

    Raises:
        DataError: If the id is not allowed.
    """
    if known is not None and name not in known:
        raise DataError(f"{where}: {what} {name!r} is not in the data")
