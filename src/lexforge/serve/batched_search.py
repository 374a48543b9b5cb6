"""Searches of many clients in few calls of the encoder: one thread takes all that wait at once."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from lexforge.corpus import Found, MatchedTerm
from lexforge.serve.newest_index import Opened

logger = logging.getLogger(__name__)
BATCH_QUERIES = 32  # queries of one call
MOST_WAITING = 512  # searches; further ones are refused, because their clients would wait too long
STOP_SECONDS = 2.0  # a search under way at the end may take so long


class Result(NamedTuple):
    """What was found for one query.

    Args:
        opened: The state of the index that was searched.
        query_terms: The terms of the query, the strongest first.
        hits: The hits, best first.
    """

    opened: Opened
    query_terms: list[MatchedTerm]
    hits: list[Found]


class Overloaded(Exception):
    """Raised when too many searches wait already."""


class _Asked(NamedTuple):
    query: str
    k: int
    future: Future[Result]


class BatchedSearch:
    """Searches in a thread of its own, for all clients that wait at once.

    A search that comes alone begins at once. Those that come meanwhile are searched together, in the order in
    which they came.

    Args:
        current: Returns the state of the index to search; called before each batch.
    """

    def __init__(self, current: Callable[[], Opened]) -> None:
        self._current = current
        self._waiting: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()  # None ends the thread
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; it lives in this process, so call this after a fork."""
        self._thread = threading.Thread(target=self._work, name="lexforge-search", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the searches that wait; one that takes long is left to itself."""
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def submit(self, query: str, k: int) -> Future[Result]:
        """Ask for a search.

        Args:
            query: A text that is not blank.
            k: Number of hits, at least 1.

        Returns:
            What will be found. A search that is cancelled while it waits is left out.

        Raises:
            Overloaded: If `MOST_WAITING` searches wait already.
        """
        if self._waiting.qsize() >= MOST_WAITING:
            raise Overloaded
        asked = _Asked(query, k, Future())
        self._waiting.put(asked)
        return asked.future

    def _work(self) -> None:
        has_ended = False
        while not has_ended:
            batch = [self._waiting.get()]  # sleeps until there is a search
            while len(batch) < BATCH_QUERIES and not self._waiting.empty():  # no other thread takes one out
                batch.append(self._waiting.get())
            has_ended = None in batch
            self.answer([one for one in batch if one and one.future.set_running_or_notify_cancel()])

    def answer(self, batch: Sequence[_Asked]) -> None:
        """Search for a batch, and give each its own hits, or to all the error."""
        if not batch:
            return
        try:
            opened = self._current()
            found = opened.searcher.answer([one.query for one in batch], max(one.k for one in batch))
        except Exception as error:  # whatever it is, the next batch is searched
            logger.exception("a search for %d queries failed", len(batch))
            for one in batch:
                one.future.set_exception(error)
            return
        for one, answer in zip(batch, found, strict=True):
            one.future.set_result(Result(opened, answer.terms, answer.hits[: one.k]))
