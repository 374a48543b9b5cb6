"""What the server answers: plain records, which FastAPI writes as JSON and describes in its schema."""

from __future__ import annotations

import time
from dataclasses import dataclass

from lexforge.corpus import Found, MatchedTerm
from lexforge.serve.batched_search import Result
from lexforge.serve.snippets import Mark


@dataclass(frozen=True)
class Hit:
    """A passage that was found.

    Args:
        rank: Place among the hits, from 1.
        id: Id of the passage.
        document: Id of the document that it is a part of.
        score: Score of the passage.
        title: Title of the document; empty if it has none.
        snippet: A part of the text; empty if the index keeps no texts.
        marks: Words of the snippet that matched: first character, the one after the last, and whether the
            query itself holds the word. Characters are Unicode code points.
        terms: The terms that matched, the strongest first.
    """

    rank: int
    id: str
    document: str
    score: float
    title: str
    snippet: str
    marks: list[Mark]
    terms: list[MatchedTerm]


@dataclass(frozen=True)
class Answer:
    """What was found for a query.

    Args:
        query: The query.
        query_terms: Its terms, the strongest first; empty for a dense model.
        hits: The hits, best first.
        seconds: Seconds from the arrival of the request to the answer.
        documents: Number of passages that were searched.
        generation: Number of the state of the index.
    """

    query: str
    query_terms: list[MatchedTerm]
    hits: list[Hit]
    seconds: float
    documents: int
    generation: int


@dataclass(frozen=True)
class Health:
    """What is served.

    Args:
        ok: True; a server that cannot search does not answer.
        documents: Number of passages that are searched.
        model: Name of the encoder.
        generation: Number of the state of the index.
        newest: Whether that is the newest state in the folder of the index.
    """

    ok: bool
    documents: int
    model: str
    generation: int
    newest: bool


@dataclass(frozen=True)
class Problem:
    """Why there is no answer.

    Args:
        error: A sentence.
    """

    error: str


def make_answer(query: str, result: Result, began: float) -> Answer:
    """Make the answer to a query, with a snippet of each hit.

    Args:
        query: The query.
        result: What was found.
        began: When the request arrived, by `time.perf_counter`.
    """
    hits = [_hit(rank, found, result) for rank, found in enumerate(result.hits, start=1)]
    return Answer(
        query=query,
        query_terms=result.query_terms,
        hits=hits,
        seconds=round(time.perf_counter() - began, 6),
        documents=len(result.opened.searcher),
        generation=result.opened.generation,
    )


def _hit(rank: int, found: Found, result: Result) -> Hit:
    terms, passage = found.terms, found.passage
    if passage is None:
        return Hit(rank, found.id, found.id, found.score, "", "", [], terms)
    snippet = result.opened.snippets.cut(passage, terms)
    title = passage.title.strip()
    return Hit(rank, found.id, passage.document, found.score, title, snippet.text, snippet.marks, terms)
