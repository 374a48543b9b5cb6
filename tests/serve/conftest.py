"""A small index on the disk, and servers of it that stop at the end of a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lexforge import corpus, models
from lexforge.common.types import Passage

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
WAIT_S = 60
HOSTILE = "<script>alert(\"x\")</script> & 'sort' <img src=x onerror=alert(1)> the list"
PASSAGES = {
    "d0": Passage("Trees", "search the tree and parse a node of the graph", "d0"),
    "d1#1": Passage("", "sort the list", "d1"),
    "d1#2": Passage("", "the array is a number of strings with a hash of each key", "d1"),
    'd2"<b>': Passage("<b>Title</b> & co", HOSTILE, 'd2"<b>'),
    "d3": Passage("بحث", "قائمة search index 🌲 tree (מפתח) key", "d3"),
    "d4": Passage("서울", "서울 검색 문서 단어 질문", "d4"),
    "d5": Passage(
        "Long", "filler words in a file. " * 60 + "read the vector index. " + "more text. " * 60, "d5"
    ),
}


@pytest.fixture(scope="session")
def make_index(tiny_checkpoint: Path) -> Callable[..., Path]:
    """Makes an index of passages in a folder."""

    def make(folder: Path, passages: dict[str, Passage] = PASSAGES) -> Path:
        model = models.load_encoder(str(tiny_checkpoint), 32)
        corpus.index_passages(model, passages, folder, name=str(tiny_checkpoint))
        return folder

    return make


@pytest.fixture(scope="session")
def index_folder(make_index: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index that no test changes."""
    return make_index(tmp_path_factory.mktemp("serve") / "index")


@pytest.fixture
def changed() -> Callable[[Path, str], None]:
    """Adds a document of a given id to an index, as `lexforge index --add` does."""

    def change(folder: Path, key: str) -> None:
        source = corpus.read_source(folder)
        model = models.load_encoder(source.model, source.max_seq_length)
        corpus.change_index(folder, model, {key: Passage("", f"open the file {key}", key)})

    return change


@pytest.fixture(scope="session")
def passages() -> dict[str, Passage]:
    """The passages of the index, by id."""
    return PASSAGES


@pytest.fixture(scope="session")
def serving() -> Callable[[Any], AbstractContextManager[str]]:
    """Serves an application from a thread, in a `with` block that gets its address."""
    return _serving


@contextmanager
def _serving(app: Any) -> Iterator[str]:
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        limit = time.monotonic() + WAIT_S
        while not server.started and thread.is_alive() and time.monotonic() < limit:
            time.sleep(0.01)
        assert server.started
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def address(index_folder: Path, serving: Callable[[Any], AbstractContextManager[str]]) -> Iterator[str]:
    """A server of the index that no test changes."""
    from lexforge.serve import create_app

    with serving(create_app(index_folder)) as url:
        yield url
