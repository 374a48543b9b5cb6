"""Words of a text, and texts that are cut to a width."""

from __future__ import annotations

import pytest

from lexforge.common.words import shorten


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("川が氾濫した。岩盤が割れた。", "川が氾濫した。..."),
        ("https://example.org/a/long/path and words", "https:/..."),
        ("a 川が氾濫した。岩盤が割れた。", "a 川が氾濫し..."),  # the space would leave one letter
        ("abcde fghijkl", "abcde..."),
        ("abcdefg hijkl", "abcdefg..."),  # a word ends just where the text is cut
        ("abcd efghijkl", "abcd ef..."),
        (" ten\n\tfits  x ", "ten fits x"),
        ("", ""),
    ],
)
def test_a_text_is_cut_to_a_width(text: str, expected: str) -> None:
    """A text that begins with a long word was shown as the placeholder alone."""
    assert shorten(text, 10, "...") == expected


def test_a_width_without_room_is_refused() -> None:
    """It is an option of the command line."""
    assert shorten("abcd", 3, "...") == "..."
    with pytest.raises(ValueError, match="width must be at least 3; received 2"):
        shorten("abcd", 2, "...")
