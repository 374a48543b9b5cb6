"""A collection that stays on the disk reads like the dictionary of its lines."""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import threading
from pathlib import Path

import pyarrow
import pytest

from lexforge.data import DataError, collection, load_documents, load_training_data
from lexforge.data.collection import Collection

LINES = {"7": "eine Straße", "0": "첫째 문서", "x y": "", "9": "tabs\tstay", "10": "the end"}
# The text of a document has no white space at its ends; a line may end in CR LF or in nothing.
CONTENT = "7\teine Straße\n0\t  첫째 문서 \r\nx y\t\n9\ttabs\tstay\n10\tthe end".encode()


def write(folder: Path, ending: str) -> Path:
    file = folder / f"collection.tsv{ending}"
    if ending == ".zst":
        with pyarrow.CompressedOutputStream(str(file), "zstd") as stream:
            stream.write(CONTENT)
    else:
        file.write_bytes(gzip.compress(CONTENT) if ending else CONTENT)
    return file


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the copy of a compressed file out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_it_is_the_mapping_that_a_dictionary_would_be(ending: str, tmp_path: Path) -> None:
    """The oracle is a dictionary, typed by hand; every way of reading must agree with it, in its order."""
    found = Collection(write(tmp_path, ending))
    assert dict(found) == LINES
    assert list(found) == list(LINES)
    assert list(found.values()) == list(LINES.values())
    assert list(found.items()) == list(LINES.items())
    assert {key: found[key] for key in LINES} == LINES
    assert (len(found), len(found.values()), found.values()[1:3], found.values()[-1]) == (
        5, 5, ["첫째 문서", ""], "the end",
    )  # fmt: skip
    for absent in ("8", "", "x", "\udc80"):
        assert absent not in found
        with pytest.raises(KeyError):
            found[absent]
    with pytest.raises(IndexError):
        found.values()[5]
    left = tmp_path / "cache" / "lexforge"
    assert not left.is_dir() or list(left.iterdir()) == []  # the copy has no name


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_threads_read_where_the_system_has_no_pread(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows has none, and there a read moves the position that other threads read at."""
    monkeypatch.delattr(os, "pread")
    found, wrong = Collection(write(tmp_path, ending)), []

    def read() -> None:
        for _ in range(200):
            wrong.extend(key for key, text in LINES.items() if found[key] != text)
            wrong.extend(pair for pair in found.items() if LINES[pair[0]] != pair[1])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong


def test_ids_of_one_hash_stay_apart(tmp_path: Path) -> None:
    """The id in the file decides: two ids of one hash would otherwise give each other's text."""
    # Found among seven thousand million ids; if `Collection` takes another hash, two others are needed.
    one, other = "261640ef6add49af", "5d51ca00d26ce002"
    first, second = (hashlib.blake2b(key.encode(), digest_size=8).digest() for key in (one, other))
    assert first == second
    file = tmp_path / "collection.tsv"
    file.write_text(f"{one}\tits text\n7\ta text\n{other}\tanother text\n")
    found = Collection(file)
    assert [found[key] for key in (other, "7", one)] == ["another text", "a text", "its text"]
    file.write_text(f"{one}\tits text\n")
    assert other not in Collection(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1\ta\n2 b\n", r"collection\.tsv:2: expected an id, a tab and a text; received '2 b'"),
        (b"1\ta\n\tb\n", r"collection\.tsv:2: the id is empty"),
        (b"1\ta\n2\tb\n1\tc\n", r"collection\.tsv:3: the id '1' occurs a second time"),
        (b"1\ta\n2\t\xff\n", r"collection\.tsv:2: not UTF-8"),
        (b"", r"collection\.tsv holds no record"),
    ],
)
def test_a_wrong_line_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    """Eight million lines are long to search by hand."""
    (tmp_path / "collection.tsv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        Collection(tmp_path / "collection.tsv")


def test_broken_gzip_data_are_named(tmp_path: Path) -> None:
    """A download that was cut must not pass for a small collection."""
    file = write(tmp_path, ".gz")
    file.write_bytes(file.read_bytes()[:-12])
    with pytest.raises(DataError, match="broken gzip data"):
        Collection(file)


def test_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    """Offsets into another file give the texts of other documents, silently."""
    file = write(tmp_path, "")
    found = Collection(file)
    file.write_bytes(b"0\tanother line\n" + CONTENT)
    for read in (lambda: found["7"], lambda: list(found.values()), lambda: found.values()[0]):
        with pytest.raises(DataError, match="changed while it was in use"):
            read()


def test_training_and_encoding_take_it_from_the_disk(tmp_path: Path) -> None:
    """The texts of 8.8 million passages do not fit beside a model."""
    (tmp_path / "collection.tsv").write_bytes(b"".join(b"%d\tpassage %d\n" % (i, i) for i in range(30)))
    (tmp_path / "queries.tsv").write_text("q\tquery\nr\tother\n")
    (tmp_path / "qrels.train.tsv").write_text("q 0 3 1\n")
    (tmp_path / "qrels.test.tsv").write_text("r 0 4 1\n")
    loaded = load_training_data(str(tmp_path), ["test"], documents=5)
    assert isinstance(loaded.documents, collection.CollectionTexts)
    assert loaded.documents[7] == "passage 7"
    assert len(loaded.measured.corpus) == 5
    assert loaded.measured.corpus["4"] == "passage 4"
    assert all(text == f"passage {key}" for key, text in loaded.measured.corpus.items())
    assert list(loaded.measured.corpus) == sorted(loaded.measured.corpus, key=int)  # the order of the file
    assert isinstance(load_documents(str(tmp_path)), Collection)
