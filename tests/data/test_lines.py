"""Lines and JSON objects with their numbers."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest

from lexforge.data import DataError
from lexforge.data.lines import (
    MAX_LINE_BYTES,
    excerpt,
    is_finite,
    json_objects,
    numbered_lines,
    require_texts,
)


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
        (b"[1]\n", r":1: expected a JSON object; received list"),
        (b'{"b": 1}\n', r":1: the field 'a' is missing; received \['b'\]"),
        (b"[" * 100_000, r":1: not a JSON object"),
        (b'{"a": ' + b"9" * 5000 + b"}", r":1: not a JSON object"),
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


@pytest.mark.parametrize(("value", "message"), [(3, "must be a string; received 3"), ("\ud800", "surrogate")])
def test_a_field_that_is_no_text_is_named(value: object, message: str) -> None:
    """Numbers and half characters would fail much later, in a tokenizer or a writer."""
    with pytest.raises(DataError, match=f"f:7: 'text' .*{message}"):
        require_texts("f:7", text=value)


def test_a_line_beyond_the_limit_is_refused_unread(tmp_path: Path) -> None:
    """64 kB of gzip can hold one line of 64 MiB, or of as many GB: it must not fill the memory."""
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n" + b" " * (4 * MAX_LINE_BYTES)))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"x\.jsonl\.gz:2: the line is longer than 16,777,216 bytes"):
        list(json_objects(path, []))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * MAX_LINE_BYTES  # the line up to the limit, and the buffer it grows in
    path.write_bytes(gzip.compress(b"x" * (MAX_LINE_BYTES - 1) + b"\n"))
    assert [len(line) for _, line in numbered_lines(path)] == [MAX_LINE_BYTES - 1]


def test_a_value_in_a_message_is_cut() -> None:
    """A line of megabytes, or a list 900 deep, must not become the message, nor fail while it does."""
    assert excerpt("short") == "'short'"
    assert len(excerpt("x" * 10_000)) == 200
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert len(excerpt(deep)) < 50
    while deep:  # freed from the outside in: no recursion
        deep = deep.pop()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((value, True) for value in (1, -2.5, 10**300)),
        *((value, False) for value in (True, "1", None, float("nan"), float("inf"), 10**400)),
    ],
)
def test_numbers_are_told_from_what_looks_like_them(value: object, expected: bool) -> None:
    """JSON has true, NaN and integers of any size; a loss has none of them."""
    assert is_finite(value) is expected
