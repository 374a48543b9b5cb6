"""Search an index from the shell: documents with score, text, and the terms that matched.

    python scripts/search.py --index INDEX --data FOLDER "how do vaccines work"
    cat queries.txt | python scripts/search.py --index INDEX --data FOLDER

INDEX is what `scripts/build_index.py` saved, FOLDER the corpus in BEIR layout. Without a query, each line of
the standard input is one; a line that is blank or not UTF-8 is named, and the others are answered. A term's
number is what it adds to the score.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tyro

from lexforge.corpus.search import Found, Searcher
from lexforge.corpus.stored_index import open_index
from lexforge.data import load_corpus
from lexforge.models.load import load_encoder


@dataclass(frozen=True)
class Config:
    """Where to search, and for what."""

    index: Path  # what build_index.py saved
    data: Path  # a folder that holds corpus.jsonl
    query: tyro.conf.Positional[str | None] = None  # None: the lines of the standard input
    model: str | None = None  # where the encoder is now; None: where it was when the corpus was encoded
    k: int = 5
    terms: int = 10  # terms shown for a document
    width: int = 200  # characters of its text shown
    verify: bool = False  # compare every file of the index with its checksum: a second a gigabyte


def show(hits: list[Found], cfg: Config) -> None:
    """Print one query's hits."""
    for rank, hit in enumerate(hits, start=1):
        text = textwrap.shorten(hit.text, cfg.width, placeholder="...")
        print(f"{rank:3}. {hit.score:9.4f}  {hit.id}  {text}")
        if hit.terms:
            terms = " ".join(f"{term}:{value:.2f}" for term, value in hit.terms[: cfg.terms])
            rest = f" and {len(hit.terms) - cfg.terms} more" if len(hit.terms) > cfg.terms else ""
            print(f"{'':16}{terms}{rest}")
    if not hits:
        print("  no document shares a term with the query")


def check_query(text: str, number: int) -> str:
    """The query of a line, or a ValueError that says what is wrong with it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # bytes that are no UTF-8 came as halves of surrogate pairs
        raise ValueError(f"line {number} is not UTF-8: {text[:40]!r}") from error
    if not text.strip():
        raise ValueError(f"line {number} is blank: there is nothing to search for")
    return text.strip()


def main(cfg: Config, lines: Iterable[str] | None = None) -> None:
    """Search for the query, or for each line as it comes (of the standard input)."""
    if lines is None:
        lines = (line.decode("utf-8", "surrogateescape") for line in sys.stdin.buffer)
    index, source = open_index(cfg.index, os.environ.get("MILVUS_TOKEN", ""), cfg.verify)
    model = load_encoder(cfg.model or source.model, source.max_seq_length)
    searcher = Searcher(index, model, load_corpus(cfg.data), source)
    refused = []
    for number, line in enumerate(lines if cfg.query is None else [cfg.query], start=1):
        try:
            query = check_query(line, number)
        except ValueError as error:
            print(error, file=sys.stderr)
            refused.append(str(error))
            continue
        print(f"query: {query}")
        show(searcher.search([query], cfg.k)[0], cfg)
    if refused:
        raise ValueError(f"{len(refused)} of {number} lines were not searched for: {refused[0]}")


if __name__ == "__main__":
    main(tyro.cli(Config))
