"""Lines and JSON objects with their numbers, and the checks of what stands in them."""

from __future__ import annotations

import gzip
import tracemalloc
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from lexforge.data import DataError
from lexforge.data.lines import (
    MAX_LINE_BYTES,
    as_number,
    check_grade,
    excerpt,
    json_objects,
    numbered_lines,
    parse_grade,
    require_texts,
    stripped,
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


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_zero_bytes_in_the_first_line_are_named(codec: str, tmp_path: Path) -> None:
    """English text in such an encoding is valid UTF-8, which would be read with a zero in each letter."""
    path = tmp_path / "x.txt"
    path.write_bytes("ask\nagain\n".encode(codec))
    with pytest.raises(DataError, match=r"x\.txt:1: not UTF-8: it holds zero bytes, as UTF-16 and UTF-32 do"):
        list(numbered_lines(path))


def test_what_is_not_seen_is_blank() -> None:
    """Web pages leave such characters in cells; beside a letter they stay, because some scripts need them."""
    for text in ("", " \t\n", "\u200b", " \ufeff \u2060\u00a0", "\u200e\u200f\u00ad", "\u3164"):
        assert not stripped(text)
    for text in ("a", "é", "\u200bé", "क्\u200d", "❤\ufe0f", "한\u3164"):
        assert stripped(f" {text}\n") == text


def test_a_cut_gzip_file_is_refused(tmp_path: Path) -> None:
    """A download that broke off must not pass for a shorter file; plain lines have only gzip's name."""
    path = tmp_path / "x.jsonl.gz"
    lines = b'{"a": 1}\n' * 1000
    for broken in (gzip.compress(lines)[:-10], lines):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"x\.jsonl\.gz: broken gzip data after line"):
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
        *((value, True) for value in (1, -2.5, 10**300, "1.5", Decimal("1.5"))),
        *((value, False) for value in (True, "one", "nan", None, [1], float("nan"), float("inf"), 10**400)),
    ],
)
def test_numbers_are_told_from_what_looks_like_them(value: object, expected: bool) -> None:
    """JSON has true, NaN and integers of any size, and a loss none of them; a CSV file spells its numbers."""
    assert (as_number(value) is not None) is expected


@pytest.mark.parametrize("grade", [0, -1, 9999, -9999, 2.0, np.int32(3), np.float64(4)])
def test_integer_grades_pass_and_become_int(grade) -> None:
    """Hub data sets hold grades as floats, arrays as numpy's numbers."""
    assert check_grade("here", grade) == grade
    assert type(check_grade("here", grade)) is int


@pytest.mark.parametrize("grade", [10_000, 1e300, 0.5, float("inf"), float("nan"), "1", None, 10**400])
def test_all_other_grades_are_refused(grade) -> None:
    """With the place and what is allowed."""
    with pytest.raises(DataError, match=r"^here: .* integer grade from -9999 to 9999; received "):
        check_grade("here", grade)


@pytest.mark.parametrize("text", ["1_0", "1.5", "1.", "1e0", " 1", "", "\u0661", "0x1", "10000", "9" * 5000])
def test_only_decimal_digits_are_grades(text: str) -> None:
    """`int` alone would read underscores, spaces and the digits of other scripts."""
    assert [parse_grade(good) for good in ("0", "+2", "-1", "0003", "1.0")] == [0, 2, -1, 3, 1]
    with pytest.raises(DataError, match=r"^the score must be an integer grade"):
        parse_grade(text)
