"""The part of a passage that shows best why it was found, with the words that matched."""

from __future__ import annotations

import logging
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from sentence_transformers.base.model import BaseModel
from tokenizers import Tokenizer

from lexforge.common.types import Passage
from lexforge.corpus import MatchedTerm

logger = logging.getLogger(__name__)
WIDTH = 300  # characters of a snippet, without the marks of what was left out
ELLIPSIS = "…"
# A model reads fewer characters than this of a passage; what stands behind them is shown without marks.
READ_CHARACTERS = 50_000
# Scripts without spaces between words, where a word is what the tokenizer makes one token of.
UNSPACED_SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")

SIGNS = ("P", "Sm", "Sk")  # categories of characters that are marked in no text: punctuation, mathematics

Mark: TypeAlias = tuple[int, int, bool]
"""First character of a word, the one after its last, and whether the query itself holds the word."""


class Snippet(NamedTuple):
    """A part of a text.

    Args:
        text: The part, with an ellipsis at each end that was cut.
        marks: The words in it that matched, in the order of the text; the places are those of Python's
            strings, which count Unicode code points.
    """

    text: str
    marks: list[Mark]


class Snippets:
    """Cuts snippets out of passages, by the tokenizer of the encoder that found them.

    It holds a copy of the tokenizer, because a tokenizer of transformers must not be used by two threads at
    once. An encoder whose tokenizer knows no places, such as one that is written in Python, gives snippets
    without marks from the beginning of each passage.

    Args:
        model: The encoder.
    """

    def __init__(self, model: BaseModel) -> None:
        self._tokenizer: Tokenizer | None = None
        self._special: frozenset[str] = frozenset()  # the token of unknown words and others that are no words
        self._most_tokens = model.max_seq_length
        backend = getattr(model.tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            logger.warning(
                "%s says not where its tokens stand: no words are marked", type(model.tokenizer).__name__
            )
            return
        self._tokenizer = Tokenizer.from_str(backend.to_str())
        self._special = frozenset(model.tokenizer.all_special_tokens)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def cut(self, passage: Passage, terms: Sequence[MatchedTerm]) -> Snippet:
        """Return the part of a passage whose words have the most weight together.

        A term counts once in a part, however often it occurs there, as it does in the score.

        Args:
            passage: The passage, whose title is no part of the snippet.
            terms: The terms that the query shares with it; the names are those of the tokenizer.

        Returns:
            The snippet, cut where words end.
        """
        # The title is read with the text, because the first token of a text depends on what stands before it.
        before = len(f"{passage.title} ".lstrip())
        joined = passage.joined
        text = joined[before:]
        words = list(self._words(joined, before, {term.term: term for term in terms}))
        first, last = _heaviest(words)
        start, end = _window(text, first, last)
        head, tail = ELLIPSIS if start else "", ELLIPSIS if end < len(text) else ""
        while start < end and text[start].isspace():
            start += 1
        while end > start and text[end - 1].isspace():
            end -= 1
        moved = len(head) - start
        marks = [
            (max(word.start, start) + moved, min(word.end, end) + moved, word.own)
            for word in words
            if word.start < end and word.end > start
        ]
        return Snippet(f"{head}{text[start:end]}{tail}", marks)

    def _words(self, joined: str, before: int, terms: dict[str, MatchedTerm]) -> Iterator[_Word]:
        """Yield the words of the text that hold a token of one of the terms, in their order.

        Signs of punctuation and tokens for what the vocabulary lacks add to scores, too, but are no words.
        """
        if self._tokenizer is None or not terms:
            return
        encoding = self._tokenizer.encode(joined[:READ_CHARACTERS], add_special_tokens=False)
        tokens = list(zip(encoding.tokens, encoding.offsets, strict=True))[: self._most_tokens]
        text, open_word = joined[before:], None
        for token, (start, end) in tokens:
            if token not in terms or token in self._special:
                continue
            start, end = _whole_word(text, start - before, end - before)
            if start >= end:
                continue  # nothing of the text, but of the title
            if all(unicodedata.category(letter).startswith(SIGNS) for letter in text[start:end]):
                continue  # signs that a reader does not look for
            term = terms[token]
            if open_word is not None and start < open_word.end:  # a further token of the same word
                found = {**open_word.terms, token: term.score}
                end = max(end, open_word.end)
                open_word = _Word(open_word.start, end, open_word.own or term.own, found)
                continue
            if open_word is not None:
                yield open_word
            open_word = _Word(start, end, term.own, {token: term.score})
        if open_word is not None:
            yield open_word


class _Word(NamedTuple):
    """A word that matched: its place, whether the query holds it, and its terms with their scores."""

    start: int
    end: int
    own: bool
    terms: dict[str, float]


def _heaviest(words: Sequence[_Word]) -> tuple[int, int]:
    """Return the place of the first of those stretches of words that have the most weight.

    Args:
        words: The words that matched, in the order of the text.

    Returns:
        The first character and the one after the last; (0, 0) if there is no word. A stretch has at most
        `WIDTH` characters.
    """
    best, place = 0.0, (0, 0)
    inside: Counter[str] = Counter()  # term -> number of words with it in the stretch
    scores: dict[str, float] = {}
    left = 0
    for right, word in enumerate(words):
        inside.update(word.terms.keys())
        scores |= word.terms
        while word.end - words[left].start > WIDTH and left < right:
            inside.subtract(words[left].terms.keys())
            left += 1
        weight = sum(scores[term] for term, count in inside.items() if count)
        if weight > best * (1 + 1e-9):  # not for the rounding of a sum in another order
            best, place = weight, (words[left].start, min(word.end, words[left].start + WIDTH))
    return place


def _window(text: str, first: int, last: int) -> tuple[int, int]:
    """Return the place of a snippet around a stretch of at most `WIDTH` characters.

    Args:
        text: The whole text.
        first: First character of the stretch.
        last: The character after its last.

    Returns:
        The first character of the snippet and the one after its last, where words end or the stretch does.
    """
    start = max(0, min(first - (WIDTH - (last - first)) // 2, len(text) - WIDTH))
    end = min(len(text), start + WIDTH)
    while start < first and not _may_cut(text, start):
        start += 1
    lowest = last if last > first else 1  # without a stretch, one word longer than a snippet is cut
    border = end
    while border > lowest and not _may_cut(text, border):
        border -= 1
    return start, border if _may_cut(text, border) or last > first else end


def _whole_word(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the place of the word that a token is a part of.

    Args:
        text: The text.
        start: First character of the token; below 0 if it stands before the text.
        end: The character after its last.

    Returns:
        The place of the word; start >= end if the token has no character in the text.
    """
    start = max(start, 0)
    while start < end and text[start].isspace():  # some tokenizers count the space before a word
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    if start < end:
        while start > 0 and not _may_cut(text, start):
            start -= 1
        while end < len(text) and not _may_cut(text, end):
            end += 1
    return start, end


def _may_cut(text: str, place: int) -> bool:
    """Return whether no word, and no letter with its marks, stands on both sides of a place of the text."""
    if place <= 0 or place >= len(text):
        return True
    if _extends(text[place]):
        return False
    return not (_joins_words(text[place - 1]) and _joins_words(text[place]))


def _extends(character: str) -> bool:
    """Return whether a character belongs to the one before it: an accent, a vowel sign, a joiner."""
    return unicodedata.category(character) in ("Mn", "Mc", "Me") or character in "\u200c\u200d"


def _joins_words(character: str) -> bool:
    """Return whether a character is a letter, digit or mark of a script with spaces between words."""
    if _extends(character):
        return True
    return character.isalnum() and not unicodedata.name(character, "").startswith(UNSPACED_SCRIPTS)
