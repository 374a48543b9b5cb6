"""Words of a text, and texts that are cut to a width."""

from __future__ import annotations

import pytest

from lexforge.common.words import shorten, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),  # vowel signs, and one that joins consonants
        ("كِتَابٌ.", ["كِتَابٌ"]),
        ("cafe\u0301 menu", ["caf\u00e9", "menu"]),
        ("q\u0303\u0301x", ["q\u0303\u0301x"]),  # no letter of its own stands for it
        ("می\u200cخواهم\u200c و", ["می\u200cخواهم", "و"]),  # a joiner inside, and one at an end
        ("র\u200d\u09cdয", ["র\u200d\u09cdয"]),  # a joiner before a mark
        ("か\u3099く ガ", ["がく", "ガ"]),
        ("\u1112\u1161\u11ab 글", ["한", "글"]),
        ("葛\U000e0100城 1\ufe0f\u20e3", ["葛", "城", "1"]),
        ("\u0301 ❤\ufe0f 👩\u200d🚀", []),  # marks and joiners alone are no word
        ("ที่นี่", ["ท", "น"]),  # Thai has no spaces
        ("naïve_x, U.S.", ["naïve_x", "U", "S"]),
    ],
)
def test_words_hold_their_marks(text: str, expected: list[str]) -> None:
    """Words of Hindi and of Arabic with vowels fell into letters."""
    assert words(text) == expected


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
