"""Searches over HTTP: latency and requests per second of `lexforge serve`, by the number of clients.

    python scripts/bench/bench_serve.py --index INDEX --queries FOLDER/queries.jsonl

The server runs in a process of its own and the clients in this one, each with a connection of its own that
stays open; a client asks again as soon as it has its answer. Both share the machine. Before that, the first
queries are asked by one client and by 32 at once, and both must get the same scores.

QUERIES holds a query per line, as text or as JSON with the field `text`. They are asked in their order, as
often as it takes.
"""

from __future__ import annotations

import http.client
import itertools
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import common
import numpy as np
import tyro

COMPARED = 64  # queries whose answers are compared before anything is timed
MOST_CLIENTS = 32
TIMEOUT_S = 120


@dataclass(frozen=True)
class Config:
    """What to ask, how many clients ask, and for how long."""

    index: Path  # the folder of an index
    queries: Path  # one query per line
    clients: tuple[int, ...] = (1, 8, 32)
    k: int = 10
    seconds: float = 20.0  # of each measurement
    warm_up: int = 100  # requests before the first one


class Client:
    """A connection that stays open."""

    def __init__(self, host: str, k: int) -> None:
        self._connection = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
        self._k = k

    def ask(self, query: str) -> dict[str, Any]:
        """Return the answer to a query."""
        return self.get("/search?" + urlencode({"q": query, "k": self._k}))

    def get(self, path: str) -> dict[str, Any]:
        """Return what stands at a path.

        Raises:
            RuntimeError: If the server refuses it.
        """
        self._connection.request("GET", path)
        response = self._connection.getresponse()
        content = json.loads(response.read())
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {content}")
        return content


def read_queries(path: Path) -> list[str]:
    """Return the queries of a file, one per line, without blank ones."""
    lines = filter(str.strip, path.read_text(encoding="utf-8").splitlines())
    return [json.loads(line)["text"] if line.startswith("{") else line for line in lines]


def check_agreement(host: str, queries: list[str], k: int) -> None:
    """Compare the answers to one client with those to many at once.

    Scores are compared, and not ids: padding changes the sums of the encoder, so hits of nearly equal score
    may change places.

    Raises:
        AssertionError: If a query has other scores.
    """
    alone = Client(host, k)
    expected = [alone.ask(query) for query in queries]
    with ThreadPoolExecutor(MOST_CLIENTS) as pool:
        answers = list(pool.map(lambda query: Client(host, k).ask(query), queries))
    for query, one, other in zip(queries, expected, answers, strict=True):
        scores, others = ([hit["score"] for hit in answer["hits"]] for answer in (one, other))
        assert len(scores) == len(others), query
        assert np.allclose(scores, others, rtol=1e-3), query


def measure(host: str, queries: list[str], clients: int, cfg: Config) -> dict[str, Any]:
    """Let clients ask for some seconds; returns the columns of one row."""
    turn, ends = itertools.count(), time.perf_counter() + cfg.seconds
    latencies: list[list[float]] = [[] for _ in range(clients)]
    failures: list[BaseException] = []

    def work(own: list[float]) -> None:
        try:
            client = Client(host, cfg.k)
            while (began := time.perf_counter()) < ends:
                client.ask(queries[next(turn) % len(queries)])
                own.append(time.perf_counter() - began)
        except BaseException as error:  # a thread's error would be lost
            failures.append(error)

    begun = time.perf_counter()
    threads = [threading.Thread(target=work, args=(own,)) for own in latencies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - begun
    if failures:
        raise failures[0]
    each = np.concatenate([np.asarray(own) for own in latencies])
    p50, p99 = np.percentile(1000 * each, [50, 99])
    return {
        "clients": clients,
        "requests": len(each),
        "p50_ms": round(float(p50), 2),
        "p99_ms": round(float(p99), 2),
        "requests_per_s": round(len(each) / elapsed, 2),
    }


def main(cfg: Config) -> None:
    """Start the server, measure it, and append the rows."""
    command = [sys.executable, "-m", "lexforge", "serve", "--index", str(cfg.index), "--port", "0"]
    queries = read_queries(cfg.queries)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            host = server.stdout.readline().strip().rpartition("http://")[2]
            if not host:
                sys.exit("the server did not start")
            warm = Client(host, cfg.k)
            health = warm.get("/health")
            check_agreement(host, queries[:COMPARED], cfg.k)
            for query in itertools.islice(itertools.cycle(queries), cfg.warm_up):
                warm.ask(query)
            same = {"model": health["model"], "documents": health["documents"], "k": cfg.k}
            rows = [{**same, **measure(host, queries, clients, cfg)} for clients in cfg.clients]
        finally:
            server.terminate()
    common.append_rows("serve", rows)


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
