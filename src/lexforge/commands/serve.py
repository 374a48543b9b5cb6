"""Serve an index: searches over HTTP, and a page to search by hand.

    lexforge serve --index INDEX
    curl "http://127.0.0.1:8080/search?q=how+do+vaccines+work&k=3"

INDEX is the folder that `lexforge index` has made. Documents that are added or deleted meanwhile are noticed
when a search comes, at most once a second. Ctrl-C ends the server. There is no authentication: with another
host than 127.0.0.1, whoever reaches the port can read the documents. Where Milvus or Qdrant keeps the
vectors, `--uri` is its address, and its credentials are read from MILVUS_TOKEN or QDRANT_API_KEY.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lexforge.settings import engine_tokens


@dataclass(frozen=True)
class Config:
    """What to serve, and where."""

    index: Path  # the folder of the index
    host: str = "127.0.0.1"  # where connections are taken; 0.0.0.0 takes those of other machines
    port: int = 8080  # 0 takes a free one
    model: str | None = None  # the encoder; None takes the one that the index names
    hybrid: Literal["bm25"] | None = None  # fuse the ranks of the index with those of BM25
    uri: str | None = None  # the server that keeps the vectors; credentials are sent to no other address


def main(cfg: Config) -> None:
    """Serve until the process is asked to end."""
    with suppress(KeyboardInterrupt):  # the usual end, also while the encoder is loaded
        from lexforge import serve  # here, because --help need not wait for torch

        serve.run_server(
            cfg.index,
            cfg.host,
            cfg.port,
            cfg.model,
            hybrid=cfg.hybrid == "bm25",
            uri=cfg.uri,
            tokens=engine_tokens(),
        )
