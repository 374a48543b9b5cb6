"""Search an index from the shell, and print documents with score, text and the terms that matched.

    lexforge search INDEX "how do vaccines work"
    lexforge search INDEX --hybrid bm25 "how do vaccines work"
    cat queries.txt | lexforge search INDEX

INDEX is the folder that `lexforge index` or `lexforge adapt` has made. Without a query, each line of the
standard input is a query; a line that is blank or not UTF-8 is reported, and the others are answered. The
number behind a term is what the term adds to the score, and `+` marks a term that the query itself lacks.
`lexforge serve` answers in a browser.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from lexforge import corpus
from lexforge.common.command_line import printable
from lexforge.common.words import shorten
from lexforge.data.lines import BYTE_ORDER_MARK
from lexforge.settings import engine_tokens

TERMS = 10  # that are shown per document
WIDTH = 200  # characters of the text that are shown per document


@dataclass(frozen=True)
class Config:
    """Where to search, and for what."""

    index: tyro.conf.Positional[Path]  # the folder of the index
    # Without one, each line of the standard input is a query.
    query: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(constructor=str)] = None
    model: str | None = None  # the encoder; None takes the name under which the corpus was encoded
    k: int = 5  # hits per query
    hybrid: Literal["bm25"] | None = None  # fuse the ranks of the index with those of BM25
    uri: str | None = None  # the server that keeps the vectors; credentials are sent to no other address
    verify: bool = False  # compare every file of the index with its checksum, about a second per gigabyte


def show(hits: list[corpus.Found]) -> None:
    """Print the hits of one query."""
    for rank, hit in enumerate(hits, start=1):
        text = "" if hit.passage is None else hit.passage.joined
        text = shorten(text, WIDTH, "...")
        print(printable(f"{rank:3}. {hit.score:9.4f}  {hit.id}  {text}".rstrip()))
        if hit.terms:
            terms = " ".join(
                f"{'' if term.own else '+'}{term.term}:{term.score:.2f}" for term in hit.terms[:TERMS]
            )
            rest = f" and {len(hit.terms) - TERMS} more" if len(hit.terms) > TERMS else ""
            print(printable(f"{'':16}{terms}{rest}"))
    if not hits:
        print("  no document shares a term with the query")


def check_query(text: str, number: int) -> str:
    """Return the query of a line.

    Raises:
        ValueError: If the line is blank or not UTF-8.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # bytes that are not UTF-8 were read as halves of surrogate pairs
        raise ValueError(f"line {number} is not UTF-8: {text[:40]!r}") from error
    if not text.strip():
        raise ValueError(f"line {number} is blank: there is nothing to search for")
    return text.strip()


def main(cfg: Config, lines: Iterable[str] | None = None) -> None:
    """Search for the query, or for each line of the standard input as soon as it arrives."""
    if lines is None:
        lines = (line.decode("utf-8", "surrogateescape") for line in sys.stdin.buffer)
    searcher = corpus.open_searcher(
        cfg.index,
        cfg.model,
        hybrid=cfg.hybrid == "bm25",
        verify=cfg.verify,
        uri=cfg.uri,
        tokens=engine_tokens(),
    )
    refused = []
    for number, line in enumerate(lines if cfg.query is None else [cfg.query], start=1):
        try:
            query = check_query(line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line, number)
        except ValueError as error:
            print(error, file=sys.stderr)
            refused.append(str(error))
            continue
        print(printable(f"query: {query}"))
        show(searcher.answer([query], cfg.k)[0].hits)
        sys.stdout.flush()  # into a pipe too, where another program waits for the answer to its line
    if refused:
        raise ValueError(f"{len(refused)} of {number} lines were not searched for: {refused[0]}")
