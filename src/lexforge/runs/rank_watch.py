"""A thread of each rank that logs which rank does not answer, so that none waits for it without a word."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from datetime import timedelta

import torch.distributed as dist

SIGNS = 6  # signs of life that each rank gives in the time after which it counts as silent
LEFT = b"left"  # the last sign of a rank that has no more to do
SILENT = "%s has not answered for %g s; the other ranks wait for it"
AGAIN = "%s answers again"
logger = logging.getLogger(__name__)


class RankWatch(threading.Thread):
    """Gives signs of life to the other ranks, and logs which of them gives none.

    A rank gives none if its process is stopped or its machine is gone. The signs go through the store at
    which the ranks have met, over a connection of their own. So they need no collective call, work with every
    backend, and cost a training step nothing. The first of the ranks that answer writes the log.

    Args:
        rank: This rank.
        ranks: Number of ranks.
        silent_s: Seconds without a sign of life after which a rank is named.
        timeout: How long the ranks wait for one another.
    """

    def __init__(self, rank: int, ranks: int, *, silent_s: float, timeout: timedelta) -> None:
        super().__init__(name="rank-watch", daemon=True)
        self.rank, self.silent_s = rank, silent_s
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, is_master=False, timeout=timeout, wait_for_workers=False)
        # A launcher that restarts the ranks keeps its store, with the signs of the ranks before.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"lexforge/{attempt}", store)
        self._holder = f"rank 0 or the launcher, which holds the store at {address},"
        self._leaves = threading.Event()
        # Of each other rank, its last sign and when it was first seen.
        self._signs = {other: b"" for other in range(ranks) if other != rank}
        self._seen = dict.fromkeys(self._signs, time.monotonic())
        self._named: set[int] = set()  # the silent ranks that this rank has logged

    def leave(self) -> None:
        """Tell the other ranks that this one has no more to do, and end the thread."""
        self._leaves.set()
        self.join(self.silent_s)

    def run(self) -> None:
        """Give signs of life and look for those of the others, until this rank leaves."""
        number = 0
        try:
            while not self._leaves.is_set():
                self._exchange(f"{number} process {os.getpid()} on {socket.gethostname()}")
                self._log_changes()
                number += 1
                self._leaves.wait(self.silent_s / SIGNS)
            self._store.set(str(self.rank), LEFT.decode())
        except dist.DistError as error:
            logger.warning("%s is gone: %s", self._holder, error)

    def _exchange(self, sign: str) -> None:
        """Write this rank's sign and read those of the others; the store itself may be silent meanwhile."""
        alarm = threading.Timer(self.silent_s, logger.warning, [SILENT, self._holder, self.silent_s])
        alarm.daemon = True
        alarm.start()
        self._store.set(str(self.rank), sign)
        for other, before in self._signs.items():
            found = self._store.get(str(other)) if self._store.check([str(other)]) else b""
            if found != before:
                self._signs[other], self._seen[other] = found, time.monotonic()
        if alarm.is_alive():
            alarm.cancel()
        else:  # no rank could give a sign
            logger.warning(AGAIN, self._holder)
            self._seen = dict.fromkeys(self._signs, time.monotonic())

    def _log_changes(self) -> None:
        """Log which ranks have become silent, and which that this rank has named answer again."""
        now = time.monotonic()
        here = {other for other, sign in self._signs.items() if sign != LEFT}
        silent = {other for other in here if now - self._seen[other] >= self.silent_s}
        if self.rank < min(here - silent, default=self.rank + 1):
            for other in sorted(silent - self._named):
                logger.warning(SILENT, self._described(other), self.silent_s)
            self._named |= silent
        for other in sorted(self._named - silent):
            logger.warning(AGAIN, self._described(other))
        self._named &= silent

    def _described(self, rank: int) -> str:
        _, _, process = self._signs[rank].decode().partition(" ")
        return f"rank {rank} ({process})" if process else f"rank {rank}"
