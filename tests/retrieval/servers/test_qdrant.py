"""Qdrant collections: exact answers in one order, and what retries, kills and other writers leave."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from server_rows import names, sparse_rows
from warm_processes import WarmProcesses

pytest.importorskip("qdrant_client", reason="the extra `qdrant` is not installed")
from qdrant_client import QdrantClient
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from lexforge.retrieval.servers import qdrant, server
from lexforge.retrieval.servers.qdrant import QdrantIndex


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "vectors.qdrant")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch) -> None:
    monkeypatch.setattr(qdrant, "FIRST_DELAY_S", 0.0)


def test_an_interrupted_build_is_dropped_and_made_again(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap in the positions is refused at once."""
    documents = sparse_rows(30)
    monkeypatch.setattr(server, "BATCH_ROWS", 7)
    with QdrantIndex.build(documents, names(30), uri=folder) as index:
        index.client.delete(index.collection, points_selector=[12, 13])
    with pytest.raises(ValueError, match="lacks position 12, so its build was interrupted") as refused:
        QdrantIndex(folder)
    (drop,) = re.findall(r"QdrantClient\(.*?\)\.delete_collection\(.*?\)", str(refused.value))
    eval(drop, {"QdrantClient": QdrantClient})
    with QdrantIndex.build(documents, names(30), uri=folder) as index:
        assert index.ids == names(30)


def test_a_request_is_repeated_while_that_may_help(folder: str, monkeypatch) -> None:
    """An overloaded server is asked again; a request that it refuses is not."""
    index = QdrantIndex.build(sparse_rows(5), names(5), uri=folder)
    calls: list[int] = []

    def failing(error: Exception):
        def call(*_: object, **__: object) -> None:
            calls.append(1)
            raise error

        return call

    def refused(status: int) -> UnexpectedResponse:
        return UnexpectedResponse(status, "reason", b"content", None)

    for error, sent, message in (
        (refused(503), 4, "no answer of Qdrant at .* to query_batch_points"),
        (ResponseHandlingException(OSError("gone")), 4, "no answer of Qdrant at .* to query_batch_points"),
        (refused(400), 1, "refused query_batch_points: Unexpected Response: 400"),
    ):
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(index.client, "query_batch_points", failing(error))
            with pytest.raises(ConnectionError, match=message):
                index.search(sparse_rows(2), 3)
        assert len(calls) == sent
    index.close()


def test_a_collection_that_was_not_made_here_is_refused(folder: str) -> None:
    """It may hold anything."""
    with QdrantIndex.build(sparse_rows(4), names(4), uri=folder) as index:
        index.client.create_collection("foreign", vectors_config={})
        with pytest.raises(ValueError, match="was not made by lexforge"):
            QdrantIndex(folder, "foreign")


def test_addresses_are_checked() -> None:
    """A typing error, or a password that a saved index would write down."""
    with pytest.raises(ValueError, match=r"or the name of a folder that ends in \.qdrant"):
        QdrantIndex("localhost")
    with pytest.raises(ValueError, match="must not contain credentials"):
        QdrantIndex("http://user:secret@host:6333")
    with pytest.raises(FileNotFoundError, match=r"the folder of nowhere/x\.qdrant does not exist"):
        QdrantIndex("nowhere/x.qdrant")
    with pytest.raises(
        ConnectionError, match="no answer of Qdrant at http://localhost:1 to collection_exists"
    ):
        QdrantIndex("http://localhost:1")


def test_a_folder_in_another_process_is_one_clear_line(folder: str, warm: WarmProcesses) -> None:
    """The client locks the folder; its own message names no cause that a user could act on."""
    with QdrantIndex.build(sparse_rows(3), names(3), uri=folder):
        code = f"from lexforge.retrieval import QdrantIndex; QdrantIndex({folder!r})"
        done = warm.completed("-c", code)
    assert "ConnectionError: the folder" in done.stderr.splitlines()[-1]
