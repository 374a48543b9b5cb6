"""Texts as words: a text that is cut where a word ends."""

from __future__ import annotations


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
