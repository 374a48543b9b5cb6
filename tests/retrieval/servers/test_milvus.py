"""Milvus collections: exact answers in one order, and what failures, kills and other writers leave."""

from __future__ import annotations

import fcntl
import gc
import os
import re
import signal
import socket
import sys
import time
from concurrent.futures import thread
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from server_rows import names, sparse_rows
from warm_processes import WarmProcesses

pytest.importorskip("pymilvus", reason="the extra `milvus` is not installed")
pytest.importorskip("milvus_lite", reason="the extra `milvus` is not installed")
from pymilvus import MilvusClient
from pymilvus.exceptions import MilvusException

from lexforge.retrieval.inverted import InvertedIndex
from lexforge.retrieval.servers import milvus, server
from lexforge.retrieval.servers.milvus import MilvusIndex


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "vectors.db")


def test_dense_hits_of_negative_scores_are_those_of_numpy(file: str) -> None:
    """A document below 0 is no hit of a sparse index, and is one of a dense index."""
    stored, asked = sparse_rows(60).toarray() - 1, sparse_rows(6, seed=1).toarray() - 1
    scores = asked @ stored.T
    with MilvusIndex.build(stored, names(60), uri=file) as index:
        hits = index.search(asked, 60)
    for row, found, values in zip(scores, hits.ids, hits.scores, strict=True):
        order = np.argsort(-row, kind="stable")
        assert found == [f"d{place}" for place in order]
        np.testing.assert_array_equal(values, row[order])


@pytest.mark.timeout(60)
def test_a_forgotten_index_waits_for_no_lock(file: str) -> None:
    """The garbage collector may come while its thread holds a lock of the thread pools, and then hung."""
    index = MilvusIndex.build(sparse_rows(9), names(9), uri=file)
    with thread._global_shutdown_lock:  # `submit` holds it
        del index
        gc.collect()
    with MilvusIndex(uri=file) as again:
        assert len(again) == 9
    with Path(file, "LOCK").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_closed_file_is_free(file: str) -> None:
    """The next process must not wait for this one to end."""
    index = MilvusIndex.build(sparse_rows(3), names(3), uri=file)
    index.close()
    with open(Path(file) / "LOCK") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from server_rows import names, sparse_rows
from lexforge.retrieval.servers import server
from lexforge.retrieval.servers.milvus import MilvusIndex
server.BATCH_ROWS = 4
with MilvusIndex(sys.argv[1]) as index:
    for start in range(0, 400, 20):
        index.add(sparse_rows(400)[start : start + 20], names(20, start))
        print(len(index), flush=True)
"""


def test_a_killed_build_is_dropped_and_made_again(file: str, warm: WarmProcesses, tmp_path: Path) -> None:
    """After SIGKILL between or inside batches, a build is refused, and the error has the call that helps."""
    folder = Path(__file__).parents[2]
    (writer,) = warm.start("-c", [WRITER, file, folder], errors=tmp_path / "errors")
    deadline = time.monotonic() + 120
    try:
        while warm.log.read_text().split()[:3] != ["20", "40", "60"]:
            assert time.monotonic() < deadline, (tmp_path / "errors").read_text()
            time.sleep(0.001)
    finally:
        os.kill(writer, signal.SIGKILL)
        ended = warm.end()
    assert ended == [-signal.SIGKILL], (tmp_path / "errors").read_text()
    documents = sparse_rows(400)
    with pytest.raises(ValueError, match="interrupted"):
        MilvusIndex.check_available(uri=file)
    with pytest.raises(ValueError, match=r"interrupted.*: drop it \(MilvusClient\(.*\)\)") as refused:
        MilvusIndex.build(documents, names(400), uri=file)
    (drop,) = re.findall(r"MilvusClient\(.*?\)\.drop_collection\(.*?\)", str(refused.value))
    eval(drop, {"MilvusClient": MilvusClient})
    with MilvusIndex.build(documents, names(400), uri=file) as index:
        expected = InvertedIndex.build(documents, names(400)).search(documents[:9], 400)
        assert index.search(documents[:9], 400).ids == expected.ids


def test_a_failed_batch_is_one_clear_line(file: str, monkeypatch) -> None:
    """The answer to a batch was lost: it does not count, and the second sending doubles nothing."""
    monkeypatch.setattr(server, "BATCH_ROWS", 10)
    with MilvusIndex(file) as index:
        index.add(sparse_rows(5), names(5))
        real = index.client.upsert

        def upsert(*arguments: object, **options: object) -> None:
            real(*arguments, **options)
            raise MilvusException(65535, "no\n answer")

        with monkeypatch.context() as broken:
            broken.setattr(index.client, "upsert", upsert)
            with pytest.raises(ConnectionError, match=r"Milvus at .* failed at upsert: no answer$"):
                index.add(sparse_rows(20, seed=4), names(20, 5))
        assert len(index) == 5
        index.add(sparse_rows(20, seed=4), names(20, 5))
    with MilvusIndex(file) as index:
        assert len(index) == 25


def test_a_collection_that_lacks_a_position_is_not_opened(file: str, tmp_path: Path) -> None:
    """When half of a batch was kept, an answer from the rest would be wrong."""
    with MilvusIndex.build(sparse_rows(30), names(30), uri=file) as index:
        index.save(tmp_path / "saved")
        index.client.delete(index.collection, filter="position == 12")
    for call in (partial(MilvusIndex, file), partial(MilvusIndex.load, tmp_path / "saved")):
        with pytest.raises(ValueError, match=r"lacks position 12, .* interrupted: drop it \(MilvusClient"):
            call()


def test_a_collection_that_was_not_made_here_is_refused(file: str) -> None:
    """It may hold anything; another name is free."""
    with MilvusIndex.build(sparse_rows(10), names(10), uri=file) as index:
        index.client.create_collection("foreign", dimension=4)
    with pytest.raises(ValueError, match=r"collection 'foreign' .* was not made by lexforge"):
        MilvusIndex(file, "foreign")
    with MilvusIndex(file, "other") as index:
        assert len(index) == 0


def test_bad_weights_create_no_collection(file: str) -> None:
    """A refused build leaves nothing that the corrected one would stumble over."""
    bad = sparse_rows(4)
    bad.data[0] = -1
    with pytest.raises(ValueError, match="weights must be finite and >= 0"):
        MilvusIndex.build(bad, names(4), uri=file)
    with pytest.raises(ValueError, match="3 ids for 4 documents"):
        MilvusIndex.build(sparse_rows(4), names(3), uri=file)
    with MilvusIndex(file) as index:
        assert index.client.list_collections() == []


def test_an_absent_server_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user sees first when the address is wrong."""
    monkeypatch.setattr(milvus, "TIMEOUT_S", 2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(
        ConnectionError, match=rf"^no Milvus at http://127\.0\.0\.1:{port}; is the server there\? .*$"
    ):
        MilvusIndex(f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("package", ["pymilvus", "milvus_lite"])
def test_a_missing_extra_is_named(package: str, file: str, monkeypatch) -> None:
    """The message is the command that installs it."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"pip install '\.\[milvus\]'"):
        MilvusIndex(file)


@pytest.mark.parametrize(
    ("uri", "error", "message"),
    [
        ("vectors.txt", ValueError, "uri must be http://host:port"),
        ("ftp://host", ValueError, "uri must be http://host:port"),
        ("http://me:secret@host:19530", ValueError, "pass them as `token`"),
        ("no-such-folder/vectors.db", FileNotFoundError, "folder of no-such-folder"),
    ],
)
def test_a_wrong_address_is_refused(uri: str, error: type, message: str) -> None:
    """Before anything is connected; a password does not stand in the message."""
    with pytest.raises(error, match=message) as caught:
        MilvusIndex(uri)
    assert "secret" not in str(caught.value)
