"""The words of a text in any script, and texts that are cut where a word ends."""

from __future__ import annotations

import re
import unicodedata
from functools import cache

# Marks that make no word longer. The scripts have no spaces: between its marks a clause falls into parts,
# with them it would be one word. A variation selector only chooses between forms of a letter.
_NO_PART = ("THAI", "LAO", "KHMER", "MYANMAR", "VARIATION SELECTOR")
_FIRST_MARK, _LAST_MARK = 0x300, 0x1EFFF  # behind these stand the marks of `_NO_PART` alone


@cache
def word_pattern() -> re.Pattern[str]:
    r"""Return the pattern of a word: letters, digits and `_`, with the marks on them.

    `\w` holds no mark, such as the vowel signs of Hindi and Arabic or an accent that is a character of its
    own. The joiners U+200C and U+200D are part of a word where it goes on behind them, as in Persian.
    """
    marks = "".join(
        character
        for character in map(chr, range(_FIRST_MARK, _LAST_MARK + 1))
        if unicodedata.category(character) in ("Mn", "Mc")
        and not unicodedata.name(character, "").startswith(_NO_PART)
    )
    # Most words end at a character before the first mark, for which the large class need not be searched.
    return re.compile(rf"\w++(?:(?=[^\0-\u02ff])[\u200c\u200d]*+[\w{marks}]++)*+")


def words(text: str) -> list[str]:
    """Return the words of a text in order, composed (NFC), so that equal words have equal characters.

    Args:
        text: Any text.
    """
    return word_pattern().findall(unicodedata.normalize("NFC", text))  # at once if it is composed


def shorten(text: str, width: int, placeholder: str) -> str:
    """Cut a text to one line.

    Args:
        text: Any text; each run of white space becomes one space.
        width: The most characters of the line, with the placeholder.
        placeholder: What stands for the rest of a text that is cut.

    Returns:
        The line. It is cut at a space, but inside a word where that would leave less than half of the width:
        Chinese and Japanese have no spaces, and a text may begin with a long address.

    Raises:
        ValueError: If the placeholder alone is wider.
    """
    if width < len(placeholder):
        raise ValueError(f"width must be at least {len(placeholder)}; received {width}")
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    kept = width - len(placeholder)
    space = line.rfind(" ", 0, kept + 1)
    if 2 * space >= width:
        kept = space
    return line[:kept].rstrip() + placeholder
