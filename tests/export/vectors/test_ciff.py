"""CIFF: bytes worked by hand, and a whole file read by a plain reader of protocol buffers."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from lexforge.export import VECTOR_TARGETS, export_vectors
from lexforge.export.vectors.ciff import encode_postings


def varint(content: bytes, place: int) -> tuple[int, int]:
    """The number at a place, and the place behind it."""
    value = shift = 0
    while True:
        byte = content[place]
        value, shift, place = value | (byte & 0x7F) << shift, shift + 7, place + 1
        if byte < 0x80:
            return value, place


def fields(message: bytes) -> list[tuple[int, object]]:
    """Number and value of every field of a message, in order."""
    found, place = [], 0
    while place < len(message):
        tag, place = varint(message, place)
        if tag & 7 == 0:
            value, place = varint(message, place)
        elif tag & 7 == 1:
            value, place = struct.unpack("<d", message[place : place + 8])[0], place + 8
        else:
            assert tag & 7 == 2
            size, place = varint(message, place)
            value, place = message[place : place + size], place + size
        found.append((tag >> 3, value))
    return found


def messages(content: bytes) -> list[bytes]:
    found, place = [], 0
    while place < len(content):
        size, place = varint(content, place)
        found.append(content[place : place + size])
        place += size
    return found


def test_postings_are_those_worked_by_hand() -> None:
    """One wrong bit shifts all that follows."""
    assert (
        encode_postings(np.array([0, 1]), np.array([5, 127])).hex(" ")
        == "22 04 08 00 10 05 22 04 08 01 10 7f"
    )
    # 300 is 0b10_0101100: the low seven bits with the sign of more to come, then 2.
    assert encode_postings(np.array([300]), np.array([128])).hex(" ") == "22 06 08 ac 02 10 80 01"
    largest = encode_postings(np.array([2**31 - 1]), np.array([1]))
    assert largest.hex(" ") == "22 08 08 ff ff ff ff 07 10 01"


@pytest.mark.parametrize("shard_bytes", [300, 10**6])
def test_the_file_holds_the_postings_of_a_naive_loop(
    shard_bytes: int, store, some_vectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents are cut into runs by size; the merged lists must not show the cuts."""
    vectors = some_vectors(50, width=20)
    terms = ["zebra", "a", "##b", "서울", "white space", *(f"t{i}" for i in range(5, 20))]
    ids = [f"문서 {i}" for i in range(50)]
    corpus = store(tmp_path / "corpus", vectors, ids)
    monkeypatch.setattr(VECTOR_TARGETS["ciff"], "shard_bytes", shard_bytes)
    exported = export_vectors(corpus, tmp_path / "out", "ciff", terms=terms)
    assert exported.files == ["index.ciff"]
    assert not list((tmp_path / "out").glob("*.run"))
    scale = exported.survey.scale
    whole = np.array([[round(float(w) * scale) for w in row] for row in vectors.toarray()])
    header, *rest = messages((tmp_path / "out" / "index.ciff").read_bytes())
    head = dict(fields(header))
    present = [column for column in range(20) if whole[:, column].any()]
    assert [head[i] for i in range(1, 7)] == [1, len(present), 50, len(present), 50, whole.sum()]
    assert head[7] == whole.sum() / 50
    lists, records = rest[: len(present)], rest[len(present) :]
    names = [("[4]" if " " in term else term).encode() for term in terms]
    assert [dict(fields(record)) for record in records] == [
        {1: i, 2: name.encode(), 3: whole[i].sum()} for i, name in enumerate(ids)
    ]
    found = {}
    for message in lists:
        parts = fields(message)
        (_, name), (_, frequency), (_, total), *postings = parts
        document, column = 0, []
        for field, posting in postings:
            assert field == 4
            (_, gap), (_, weight) = fields(posting)
            document += gap
            column.append((document, weight))
        assert (frequency, total) == (len(column), sum(weight for _, weight in column))
        found[name] = column
    assert list(found) == sorted(names[column] for column in present)
    for column in present:
        expected = [(i, w) for i, w in enumerate(whole[:, column].tolist()) if w]
        assert found[names[column]] == expected


def test_queries_name_each_term_as_often_as_its_weight(store, tmp_path: Path) -> None:
    """PISA weighs the terms of a query by how often they occur."""
    corpus = store(
        tmp_path / "corpus", sparse.csr_array(np.float32([[1, 0], [0, 2], [1, 1]])), ["a", "b", "c"]
    )
    export_vectors(corpus, tmp_path / "out", "ciff", terms=["x", "y"])
    assert (tmp_path / "out" / "example-query.txt").read_text() == "example:" + " ".join(["x"] * 20) + "\n"
    # By PISA's default tokenizer, `##ing` would be `ing`, and `서울` would be gone.
    assert "--tokenizer whitespace --weighted" in (tmp_path / "out" / "README.md").read_text()
