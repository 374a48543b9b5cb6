"""A server follows the index on the disk: documents come while searches go on."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from lexforge.common.types import Passage
from lexforge.corpus import open_searcher, read_source
from lexforge.corpus.stored_index import FORMAT
from lexforge.retrieval import InvertedIndex
from lexforge.serve import newest_index
from lexforge.serve.newest_index import NewestIndex
from lexforge.storage.manifest import pack_manifest

WAIT_S = 60


@pytest.fixture
def folder(make_index: Callable[..., Path], tmp_path: Path) -> Path:
    """An index that a test may change."""
    return make_index(tmp_path / "index")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at the folder each time, and tries again at once."""
    monkeypatch.setattr(newest_index, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(newest_index, "RETRY_SECONDS", 0.0)


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_state_was_searched_before_a_client_searches_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first search on a machine compiles for many seconds, for which the first client waited."""
    asked, really = [], InvertedIndex.search
    monkeypatch.setattr(
        InvertedIndex, "search", lambda self, vectors, k: asked.append(k) or really(self, vectors, k)
    )
    NewestIndex(folder).open()
    assert asked == [1, 100]


def test_a_new_state_is_opened_while_the_old_one_is_searched(
    folder: Path, changed: Callable[[Path, str], None], impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To load an encoder takes seconds, in which clients go on searching."""
    index = NewestIndex(folder)
    index.open()
    old = index.current()
    assert (old.generation, len(old.searcher), index.is_newest) == (1, 7, True)
    may_open, really = threading.Event(), newest_index.open_searcher

    def slow(*arguments: Any) -> Any:
        assert may_open.wait(WAIT_S)
        return really(*arguments)

    monkeypatch.setattr(newest_index, "open_searcher", slow)
    changed(folder, "new")
    assert index.current() is old
    assert not index.is_newest
    [opening] = [thread for thread in threading.enumerate() if thread.name == "lexforge-open-index"]
    assert index.current() is old
    assert [thread.name for thread in threading.enumerate()].count(opening.name) == 1, "opened twice"
    assert old.searcher.answer(["sort the list"], 2)[0].hits, "files of the old state are read no more"
    may_open.set()
    until(lambda: index.current() is not old)
    new = index.current()
    assert (new.generation, len(new.searcher), index.is_newest) == (2, 8, True)
    assert "new" in [hit.id for hit in new.searcher.answer(["open the file"], 8)[0].hits]


def test_a_state_that_cannot_be_opened_is_not_served(
    folder: Path,
    tiny_checkpoint: Path,
    changed: Callable[[Path, str], None],
    impatient: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The old state goes on, the log and the health of the server say so, and a later attempt succeeds.

    Whatever the error is: the encoder's file is cut short, for which safetensors has an error of its own.
    """
    model = shutil.copytree(tiny_checkpoint, folder.with_name("model"))
    index = NewestIndex(folder, str(model))
    index.open()
    changed(folder, "new")
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[:100])
    with pytest.raises(SafetensorError) as failure:  # neither an OSError nor a ValueError
        open_searcher(folder, str(model))
    with caplog.at_level(logging.ERROR, logger="lexforge"):
        index.current()
        until(lambda: f"generation 2 cannot be opened: {failure.value}" in caplog.text)
    assert "generation 1 is still served" in caplog.text
    assert (index.current().generation, index.is_newest) == (1, False)
    (model / "model.safetensors").write_bytes(weights)
    until(lambda: index.current().generation == 2)


def test_a_folder_that_is_gone_ends_no_server(
    folder: Path, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    """An index that is moved away is still in memory; the next one at its place is served."""
    index = NewestIndex(folder)
    index.open()
    assert index.is_newest
    moved = folder.rename(folder.with_name("moved"))
    with caplog.at_level(logging.ERROR, logger="lexforge"):
        assert (index.current().generation, index.is_newest) == (1, False)
    assert "the state of the index cannot be read" in caplog.text
    moved.rename(folder)
    until(lambda: index.current().generation == 1 and index.is_newest)


@pytest.mark.parametrize("has_texts", [True, False])
def test_an_index_that_was_made_again_is_opened(
    has_texts: bool,
    make_index: Callable[..., Path],
    passages: dict[str, Passage],
    tmp_path: Path,
    impatient: None,
) -> None:
    """It is generation 1 again, and without texts nothing else that it was made of differs either."""
    for name, number in (("index", 7), ("other", 3)):
        folder = make_index(tmp_path / name, dict(list(passages.items())[:number]))
        if not has_texts:
            source = replace(read_source(folder), passages=None)
            (folder / "source.json").write_text(pack_manifest(FORMAT, vars(source)) + "\n")
    index = NewestIndex(tmp_path / "index")
    index.open()
    assert len(index.current().searcher) == 7
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "other").rename(tmp_path / "index")
    until(lambda: len(index.current().searcher) == 3)
    assert (index.current().generation, index.is_newest) == (1, True)


def test_the_folder_is_read_at_most_once_a_second(
    folder: Path, changed: Callable[[Path, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy server would read the file thousands of times a second: a change is seen at the next reading."""
    index = NewestIndex(folder)
    now = [100.0]
    monkeypatch.setattr(newest_index.time, "monotonic", lambda: now[0])
    index.open()
    for key, early, late in (("one", (0.0, 0.9), 1.1), ("two", (1.5, 2.0), 2.2), ("three", (3.1,), 3.3)):
        changed(folder, key)
        for seconds in early:
            now[0] = 100.0 + seconds
            index.current()
            assert index.is_newest, seconds
        now[0] = 100.0 + late
        before = index.current().generation
        assert not index.is_newest
        for thread in threading.enumerate():
            if thread.name == "lexforge-open-index":
                thread.join(WAIT_S)
        assert (index.current().generation, index.is_newest) == (before + 1, True)


def test_an_index_must_be_opened_first_and_be_one(tmp_path: Path) -> None:
    """Errors of the start are those of the search."""
    index = NewestIndex(tmp_path / "nothing")
    with pytest.raises(RuntimeError, match="call open"):
        index.current()
    with pytest.raises(FileNotFoundError, match="holds no finished index"):
        index.open()
