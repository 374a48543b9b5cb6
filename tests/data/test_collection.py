"""A collection that stays on the disk reads like the dictionary of its lines."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow
import pytest

from lexforge.data import DataError, load_documents, load_training_data
from lexforge.data.collection import Collection
from lexforge.data.tables import TextColumn

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


def test_a_file_that_has_changed_is_read_anew(tmp_path: Path) -> None:
    """The copy in the cache gave the texts of the file as it was."""
    file = write(tmp_path, "")
    assert Collection(file)["7"] == LINES["7"]
    file.write_bytes(b"7\tanother line\n" + CONTENT.partition(b"\n")[2])
    assert Collection(file)["7"] == "another line"


def test_training_and_encoding_take_it_from_the_disk(tmp_path: Path) -> None:
    """The texts of 8.8 million passages do not fit beside a model."""
    (tmp_path / "collection.tsv").write_bytes(b"".join(b"%d\tpassage %d\n" % (i, i) for i in range(30)))
    (tmp_path / "queries.tsv").write_text("q\tquery\nr\tother\n")
    (tmp_path / "qrels.train.tsv").write_text("q 0 3 1\n")
    (tmp_path / "qrels.test.tsv").write_text("r 0 4 1\n")
    loaded = load_training_data(str(tmp_path), ["test"], documents=5)
    assert isinstance(loaded.documents, TextColumn)
    assert loaded.documents[7] == "passage 7"
    assert len(loaded.measured.corpus) == 5
    assert loaded.measured.corpus["4"] == "passage 4"
    assert all(text == f"passage {key}" for key, text in loaded.measured.corpus.items())
    assert list(loaded.measured.corpus) == sorted(loaded.measured.corpus, key=int)  # the order of the file
    assert isinstance(load_documents(str(tmp_path)), Collection)
