"""Lines and JSON objects with their numbers."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from lexforge.data import DataError
from lexforge.data.lines import json_objects, numbered_lines, require_texts


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    """Texts may hold U+2028 or U+0085, which `str.splitlines` would cut; gzipped files read the same."""
    content = "a\u2028b\r\nc\u0085d\n\nlast".encode()
    plain, packed = tmp_path / "x.txt", tmp_path / "x.txt.gz"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    expected = [(1, "a\u2028b"), (2, "c\u0085d"), (3, ""), (4, "last")]
    assert list(numbered_lines(plain)) == list(numbered_lines(packed)) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n\xff\n', r":2: not UTF-8"),
        (b'{"a": 1}\n\n', r":2: not a JSON object"),
        (b"[1]\n", r":1: expected a JSON object, got list"),
        (b'{"b": 1}\n', r":1: the field 'a' is missing; found \['b'\]"),
        (b"[" * 100_000, r":1: not a JSON object"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    """A user with a million lines needs the number of the bad one; deep nesting must be no crash."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(json_objects(path, ["a"]))


def test_a_cut_gzip_file_is_refused(tmp_path: Path) -> None:
    """A download that broke off must not pass for a shorter file."""
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 1000)[:-10])
    with pytest.raises(DataError, match="broken gzip data"):
        list(json_objects(path, ["a"]))


@pytest.mark.parametrize(("value", "message"), [(3, "must be a string, got 3"), ("\ud800", "surrogate")])
def test_a_field_that_is_no_text_is_named(value: object, message: str) -> None:
    """Numbers and half characters would fail much later, in a tokenizer or a writer."""
    with pytest.raises(DataError, match=f"f:7: 'text' .*{message}"):
        require_texts("f:7", text=value)
