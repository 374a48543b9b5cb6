"""Read and write TREC runs as text files; a file whose name ends in .gz is compressed."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable
from pathlib import Path

from lexforge.common.types import Run
from lexforge.data import DataError, RetrievalData
from lexforge.data.lines import BYTE_ORDER_MARK, numbered_lines
from lexforge.storage.files import write_text

logger = logging.getLogger(__name__)


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


def write_run(path: str | Path, run: Run) -> None:
    """Write a run as lines of `query Q0 document rank score lexforge`, ranked by score.

    Documents of equal score are ranked in the order of the dict; in a run from `Hits.to_run` no two scores of
    a query are equal.

    Args:
        path: The file to write; an existing file is replaced.
        run: `{query id: {document id: score}}`.

    Raises:
        ValueError: If `check_run_ids` refuses an id, or a score is not finite.
    """
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
            lines.append(f"{query} Q0 {document} {rank} {float(score)!r} lexforge\n")
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
    for number, line in numbered_lines(Path(path)):
        columns = line.split()
        if not columns:
            continue
        where = f"{path}:{number}"
        if len(columns) != 6:
            raise DataError(
                f"{where}: a line must have the columns `query Q0 document rank score tag`; "
                f"received {len(columns)} columns"
            )
        query, _, document, _, text, _ = columns
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


def read_run_of_split(path: str | Path, data: RetrievalData, split: str) -> Run:
    """Read the part of a run that ranks the queries of a split; how many others it ranks is logged.

    Args:
        path: The file, as for `read_run`.
        data: The retrieval set; a query or document of the run that it lacks is refused.
        split: The split whose queries are kept.

    Returns:
        The run of these queries.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If there is no such split.
        DataError: If `read_run` refuses the file, or if the run ranks no query of the split.
    """
    run, judged = read_run(path, data.queries, data.corpus), data.split(split)
    kept = {query: found for query, found in run.items() if query in judged}
    others = [query for query in run if query not in judged]
    if not kept:
        first = f": its first query is {others[0]!r} (--split names another split)" if others else ""
        raise DataError(f"{path} must rank queries of the split {split!r}; it ranks none{first}")
    if others:
        logger.warning(
            "%s: %s of %s queries left out, because the split %r lacks them, such as %r (see --split)",
            path,
            f"{len(others):,}",
            f"{len(run):,}",
            split,
            others[0],
        )
    return kept


def _check_token(token: str, what: str) -> None:
    """Refuse a word that would shift the columns of its line, or be read as something else.

    Raises:
        ValueError: If it is empty, contains white space or begins with a byte order mark.
    """
    if token.split() != [token] or token.startswith(BYTE_ORDER_MARK):
        raise ValueError(
            f"{what} {token!r}: a TREC file separates its columns by white space; an id must be one "
            "or more characters without white space, and must not begin with a byte order mark"
        )


def _check_known(where: str, what: str, name: str, known: Collection[str] | None) -> None:
    """Refuse an id that is not among the allowed ones, if these are given.

    Raises:
        DataError: If the id is not allowed.
    """
    if known is not None and name not in known:
        raise DataError(f"{where}: {what} {name!r} is not in the data")
