"""The newest state of an index on the disk: what is served follows the documents, and no search waits."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from lexforge.corpus import Searcher, encode, open_searcher, read_source
from lexforge.corpus.stored_index import Source
from lexforge.serve.snippets import Snippets

logger = logging.getLogger(__name__)
CHECK_SECONDS = 1.0  # the file that names the state is read at most this often
RETRY_SECONDS = 10.0  # after a state could not be opened
TRIED_HITS = (1, 100)  # few hits and many are searched for by different compiled loops


class Opened(NamedTuple):
    """A state of an index that is ready to be searched, and what cuts snippets of its passages."""

    searcher: Searcher
    snippets: Snippets

    @property
    def source(self) -> Source:
        """What the state was made of, which differs from that of every other state."""
        return self.searcher.source

    @property
    def generation(self) -> int:
        """The number of the state; an index that was made again counts from 1 again."""
        return self.source.generation


class NewestIndex:
    """Keeps the newest state of an index open.

    A thread opens a new state while the one before is still searched.

    Args:
        directory: The folder of the index.
        model: The encoder, as a folder or a hub name; None takes the one that the index names.
        **options: Further arguments of `lexforge.corpus.open_searcher`, such as `hybrid`.
    """

    def __init__(self, directory: Path, model: str | None = None, **options: Any) -> None:
        self.directory = directory
        self._model, self._options = model, options
        self._lock = threading.Lock()
        self._opened: Opened | None = None
        self._newest: Source | None = None  # the state that the folder named last, if it could be read
        self._next_check = 0.0  # by `time.monotonic`
        self._is_opening = False

    def open(self) -> None:
        """Open the index, if it is not open already.

        Raises:
            FileNotFoundError: If the folder holds no index, or there is no such model.
            ValueError: If a file is damaged, or the model is not the one that made the index.
        """
        if self._opened is not None:
            return
        opened = self._open()
        with self._lock:
            self._opened, self._newest = opened, opened.source
            self._next_check = time.monotonic() + CHECK_SECONDS

    def current(self) -> Opened:
        """Return the state to search now, and begin to open a newer one if there is one.

        Raises:
            RuntimeError: If `open` was not called.
        """
        with self._lock:
            if self._opened is None:
                raise RuntimeError("the index is not open: call open() first")
            now = time.monotonic()
            if now < self._next_check or self._is_opening:
                return self._opened
            self._next_check = now + CHECK_SECONDS
            try:
                self._newest = read_source(self.directory)
            except (OSError, ValueError) as error:
                self._newest = None
                self._failed("the state of the index cannot be read", error)
                return self._opened
            if self._newest != self._opened.source:
                self._is_opening = True
                threading.Thread(target=self._replace, name="lexforge-open-index", daemon=True).start()
            return self._opened

    @property
    def is_newest(self) -> bool:
        """Whether the state that is searched is the one that the folder named last."""
        with self._lock:
            return self._opened is not None and self._opened.source == self._newest

    def _open(self) -> Opened:
        """Open the newest state, and search it: the first search on a machine compiles for many seconds."""
        searcher = open_searcher(self.directory, self._model, **self._options)
        vectors = encode(searcher.model, ["how does it work"], "query")
        for k in TRIED_HITS:
            searcher.index.search(vectors, k)
        return Opened(searcher, Snippets(searcher.model))

    def _replace(self) -> None:
        """Open the newest state in a thread of its own; without success the one before stays."""
        opened, failure = None, None
        try:
            opened = self._open()
        except Exception as error:  # whatever it is, searches go on
            failure = error
        with self._lock:
            self._is_opening = False
            if opened is None:
                assert self._newest is not None
                self._failed(f"generation {self._newest.generation} cannot be opened", failure)
                return
            self._opened = opened
        logger.info("serving generation %d, %d documents", opened.generation, len(opened.searcher))

    def _failed(self, what: str, error: Exception | None) -> None:
        """Say that an older state is served, and wait before the next attempt; the caller holds the lock."""
        self._next_check = time.monotonic() + RETRY_SECONDS
        assert self._opened is not None
        logger.error(
            "%s: %s; generation %d is still served, next attempt in %.0f s",
            what,
            error,
            self._opened.generation,
            RETRY_SECONDS,
        )
