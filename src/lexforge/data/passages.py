"""Long texts cut into parts that fit an encoder, at the best borders that make them short enough.

Nothing is lost: a part is a slice of its text, and the slices touch each other but for white space. The time
grows with the length of a text and not with its square.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from typing import NamedTuple

from lexforge.common.types import joined

CountTokens = Callable[[Sequence[str]], list[int]]

_TEXTS_PER_CALL = 1024  # of `count_tokens`, which may keep much beside the numbers
# A text with more characters per token of the limit is cut before it is counted: tokens are rarely so long.
_LONG_TOKEN = 16
_TOO_LONG = 2**62  # tokens of a text that was not counted

_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")
# Each match begins with the mark, which a search finds fast. Between Chinese and Japanese sentences there is
# no space.
_SENTENCE = re.compile(
    r"[.!?…。！？｡](?:(?<=[.!?…])[\"'”’)\]]?\s+|(?<=[。！？｡])[」』）”’]?(?![。！？｡」』）”’]))"
)
_LINE = re.compile(r"\n")
_SPACE = re.compile(r"\s+")
_CHARACTER = re.compile(r"\S")


class Part(NamedTuple):
    """A part of a text, with the title that it carries."""

    title: str
    text: str


class _Unit(NamedTuple):
    """A slice of a text that is not cut, unless it turns out to be too long."""

    start: int
    end: int
    tokens: int


@dataclass
class _Draft:
    """A text that is being cut."""

    title: str
    text: str
    room: int  # tokens for the text of a part
    units: list[_Unit] = field(default_factory=list)


class Cutter:
    """Cuts texts into parts of a limited number of tokens.

    Args:
        count_tokens: Texts -> number of tokens of each, with the special tokens that an encoder adds.
        max_tokens: The limit for title and text of a part, joined by a space.

    Raises:
        ValueError: If the special tokens alone reach the limit.
    """

    def __init__(self, count_tokens: CountTokens, max_tokens: int) -> None:
        self._count_tokens = count_tokens
        self._limit = max_tokens
        (self._special,) = self._count([""])
        if max_tokens <= self._special:
            raise ValueError(
                f"max_tokens must be above {self._special}, the special tokens of a text; "
                f"received {max_tokens}"
            )

    def cut(self, documents: Sequence[tuple[str, str]]) -> list[list[Part]]:
        """Cut documents.

        Args:
            documents: Title and text of each.

        Returns:
            The parts of each document; one part, with title and text as they are, if it fits. A part exceeds
            the limit only if its text is a single character.
        """
        whole = [joined(title, text) for title, text in documents]
        short = [place for place, text in enumerate(whole) if not self._is_surely_long(text)]
        tokens = self._count(whole[place] for place in short)
        fit = {place for place, number in zip(short, tokens, strict=True) if number <= self._limit}
        drafts = {place: _Draft(*documents[place], 0) for place in range(len(documents)) if place not in fit}
        cut = dict(zip(drafts, self._cut_long(list(drafts.values())), strict=True))
        return [[Part(*document)] if place in fit else cut[place] for place, document in enumerate(documents)]

    def _cut_long(self, drafts: list[_Draft]) -> list[list[Part]]:
        self._make_room(drafts)
        words = max(1, self._limit // 8)  # so many at a time: a part is then filled to seven eighths at least
        for borders in (
            partial(_ends, _PARAGRAPH),
            partial(_ends, _SENTENCE),
            partial(_ends, _LINE),
            partial(_ends, _SPACE, step=words),
            partial(_ends, _SPACE),
            partial(_ends, _CHARACTER, step=words),  # of a long word, or of a text without spaces
            partial(_ends, _CHARACTER),
        ):
            self._refine(drafts, borders)
        return self._measured(drafts)

    def _make_room(self, drafts: list[_Draft]) -> None:
        """Reserve the tokens of each title; a title that takes over half of them goes into the text."""
        room = self._limit - self._special
        counted = [draft for draft in drafts if draft.title.strip() and not self._is_surely_long(draft.title)]
        tokens = dict(zip(map(id, counted), self._count(draft.title for draft in counted), strict=True))
        for draft in drafts:
            title = tokens.get(id(draft), _TOO_LONG if draft.title.strip() else self._special) - self._special
            if title > room // 2:
                draft.title, draft.text, title = "", f"{draft.title}\n\n{draft.text}", 0
            draft.room = room - title
            draft.units = [_Unit(0, len(draft.text), _TOO_LONG)]

    def _refine(self, drafts: list[_Draft], borders: Callable[[str, int, int], Iterable[int]]) -> None:
        """Cut each unit that is too long, and count the new ones of all texts together."""
        fresh: list[tuple[_Draft, int]] = []  # text, and place of a new unit in it
        for draft in drafts:
            units: list[_Unit] = []
            for unit in draft.units:
                if unit.tokens <= draft.room:
                    units.append(unit)
                    continue
                places = [unit.start, *borders(draft.text, unit.start, unit.end), unit.end]
                if len(places) == 2:
                    units.append(unit)
                    continue
                for start, end in pairwise(places):
                    if end - start <= self._limit * _LONG_TOKEN:
                        fresh.append((draft, len(units)))
                    units.append(_Unit(start, end, _TOO_LONG))
            draft.units = units
        texts = (draft.text[slice(*draft.units[place][:2])].strip() for draft, place in fresh)
        for (draft, place), tokens in zip(fresh, self._count(texts), strict=True):
            draft.units[place] = draft.units[place]._replace(tokens=tokens - self._special)

    def _measured(self, drafts: list[_Draft]) -> list[list[Part]]:
        """Put units together and count the parts; one that is too long after all is cut in the middle.

        A tokenizer may need more tokens for a text than for its parts.
        """
        done: list[list[tuple[int, Part]]] = [[] for _ in drafts]
        waiting = [
            (place, start, end)
            for place, draft in enumerate(drafts)
            for start, end in _filled(draft.units, draft.room)
        ]
        while waiting:
            texts = [drafts[place].text[start:end].strip() for place, start, end in waiting]
            counts = self._count(
                joined(drafts[place].title, text) for (place, _, _), text in zip(waiting, texts, strict=True)
            )
            again: list[tuple[int, int, int]] = []
            for (place, start, end), text, tokens in zip(waiting, texts, counts, strict=True):
                draft = drafts[place]
                middle = _middle(draft.text, start, end) if tokens > self._limit else None
                if middle is not None:
                    again += [(place, start, middle), (place, middle, end)]
                elif text:
                    done[place].append((start, Part(draft.title, text)))
            waiting = again
        return [[part for _, part in sorted(parts)] for parts in done]

    def _is_surely_long(self, text: str) -> bool:
        return len(text) > self._limit * _LONG_TOKEN

    def _count(self, texts: Iterable[str]) -> list[int]:
        waiting, counts = iter(texts), list[int]()
        while batch := list(islice(waiting, _TEXTS_PER_CALL)):
            counts += self._count_tokens(batch)
        return counts


def _ends(border: re.Pattern[str], text: str, start: int, end: int, *, step: int = 1) -> Iterator[int]:
    """Yield where the matches of a pattern end inside a slice, or every `step`-th of these places."""
    found = (match.end() for match in border.finditer(text, start, end) if start < match.end() < end)
    return islice(found, step - 1, None, step)


def _filled(units: Sequence[_Unit], room: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of neighbouring units that have room together."""
    start = end = tokens = 0
    for unit in units:
        if end > start and tokens + unit.tokens > room:
            yield start, end
            start, tokens = unit.start, 0
        end = unit.end
        tokens += unit.tokens
    if end > start:
        yield start, end


def _middle(text: str, start: int, end: int) -> int | None:
    """Return the end of the white space next to the middle of a slice, or the middle of a word.

    Returns:
        The place; None if there is a single character.
    """
    inner = len(text[start:end].rstrip()) + start
    start = inner - len(text[start:inner].lstrip())
    half = (start + inner) // 2
    behind = _SPACE.search(text, half, inner)
    if behind is not None:
        return behind.end()
    before = list(_ends(_SPACE, text, start, half + 1))
    if before:
        return before[-1]
    return half if start < half else None
