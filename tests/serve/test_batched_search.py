"""One thread searches for all that wait: full batches, own answers, and errors that end with their batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from lexforge.corpus import Found, MatchedTerm, QueryResult
from lexforge.serve import batched_search
from lexforge.serve.batched_search import BatchedSearch, Overloaded, Result
from lexforge.serve.newest_index import Opened

WAIT_S = 30


class Searcher:
    """Finds k hits that are named after the query, and waits where it is told to."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[str], int]] = []
        self.may_go, self.has_begun = threading.Event(), threading.Event()
        self.may_go.set()

    def answer(self, queries: Sequence[str], k: int) -> list[QueryResult]:
        self.batches.append((list(queries), k))
        self.has_begun.set()
        assert self.may_go.wait(WAIT_S)
        if "bad" in queries:
            raise RuntimeError("a query that the model cannot read")
        return [
            QueryResult(
                [MatchedTerm(query, 1.0, True)], [Found(f"{query}-{n}", 1.0, None, []) for n in range(k)]
            )
            for query in queries
        ]


@pytest.fixture
def searcher() -> Searcher:
    return Searcher()


@pytest.fixture
def search(searcher: Searcher) -> Iterator[BatchedSearch]:
    snippets: Any = None
    opened = Opened(searcher, snippets)
    started = BatchedSearch(lambda: opened)
    started.start()
    yield started
    searcher.may_go.set()
    started.stop()


def held(search: BatchedSearch, searcher: Searcher) -> Future[Result]:
    """A search that has begun, and waits."""
    searcher.may_go.clear()
    searcher.has_begun.clear()
    first = search.submit("first", 1)
    assert searcher.has_begun.wait(WAIT_S)
    return first


def test_searches_that_wait_are_done_together(search: BatchedSearch, searcher: Searcher) -> None:
    """One call encodes up to 32 queries, with the largest k of them; a search alone does not wait."""
    first = held(search, searcher)
    others = [search.submit(f"q{number}", 1 + number % 5) for number in range(40)]
    searcher.may_go.set()
    assert [hit.id for hit in first.result(WAIT_S).hits] == ["first-0"]
    for number, other in enumerate(others):
        result = other.result(WAIT_S)
        assert [hit.id for hit in result.hits] == [f"q{number}-{n}" for n in range(1 + number % 5)]
        assert result.query_terms == [MatchedTerm(f"q{number}", 1.0, True)]
    assert [(len(queries), k) for queries, k in searcher.batches] == [(1, 1), (32, 5), (8, 5)]
    assert searcher.batches[1][0] == [f"q{number}" for number in range(32)], "in the order of their coming"


def test_each_of_many_threads_gets_its_own_answer(search: BatchedSearch) -> None:
    """A mistake in the order would give a client what another has asked."""

    def ask(number: int) -> list[str]:
        return [hit.id for hit in search.submit(f"q{number}", 1 + number % 7).result(WAIT_S).hits]

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(ask, range(400)))
    for number, ids in enumerate(answers):
        assert ids == [f"q{number}-{n}" for n in range(1 + number % 7)]


def test_an_error_ends_its_batch_and_not_the_thread(search: BatchedSearch, searcher: Searcher) -> None:
    """The next client must be answered; the log has the traceback."""
    first = held(search, searcher)
    together = [search.submit(query, 1) for query in ("good", "bad")]
    searcher.may_go.set()
    assert first.result(WAIT_S).hits[0].id == "first-0"
    for one in together:
        with pytest.raises(RuntimeError, match="cannot read"):
            one.result(WAIT_S)
    assert search.submit("good", 1).result(WAIT_S).hits[0].id == "good-0"


def test_a_search_that_nobody_waits_for_is_left_out(search: BatchedSearch, searcher: Searcher) -> None:
    """A client that has gone costs nothing, and one that goes while it is searched for breaks nothing."""
    first = held(search, searcher)
    gone, stays = search.submit("gone", 1), search.submit("stays", 1)
    assert gone.cancel()
    assert not first.cancel()
    searcher.may_go.set()
    assert stays.result(WAIT_S).hits[0].id == "stays-0"
    assert [queries for queries, _ in searcher.batches] == [["first"], ["stays"]]


def test_too_many_are_refused(
    search: BatchedSearch, searcher: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded, and a client learns that it must come back."""
    monkeypatch.setattr(batched_search, "MOST_WAITING", 3)
    held(search, searcher)
    waiting = [search.submit("q", 1) for _ in range(3)]
    with pytest.raises(Overloaded):
        search.submit("q", 1)
    searcher.may_go.set()
    assert [one.result(WAIT_S).hits[0].id for one in waiting] == ["q-0"] * 3
    assert search.submit("q", 1).result(WAIT_S)


def test_the_end_answers_what_waits(searcher: Searcher) -> None:
    """A server that is asked to end finishes what it has begun, and its thread ends."""
    snippets: Any = None
    opened = Opened(searcher, snippets)
    search = BatchedSearch(lambda: opened)
    waiting = [search.submit(f"q{number}", 1) for number in range(3)]
    search.start()
    search.stop()
    assert [one.result(0).hits[0].id for one in waiting] == ["q0-0", "q1-0", "q2-0"]
    assert "lexforge-search" not in [thread.name for thread in threading.enumerate()]
