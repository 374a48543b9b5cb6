"""Pseudo-queries: texts that are taken from documents and stand for what people would ask.

They say what a document is about, and not that it is the best answer. So they carry the teachers' scores of
several documents, and the best of these is the positive (a contrastive loss alone on a query and its own
passage does harm). Queries of mixed origins train better than those of one (CADET, arXiv 2505.19274), so
each document gives several.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from lexforge.common.cjk import UNSPACED
from lexforge.common.types import DataError, Passage
from lexforge.common.words import words
from lexforge.data.faults import Faults
from lexforge.data.text_tables import READERS, ending, read_lines
from lexforge.settings import TableOptions

QueryOrigin: TypeAlias = Literal["title", "sentence", "salient", "keywords"]
"""The title; the first sentence; the sentence with the rarest words; the words of highest tf-idf."""
QUERY_ORIGINS: tuple[QueryOrigin, ...] = get_args(QueryOrigin)

SHORTEST, LONGEST = 2, 32  # words of a sentence that serves as a query; a longer one is cut
WORD_LETTERS = 2  # that count as a word of Chinese or Japanese: words have about so many, and no spaces
KEYWORDS = (2, 5)  # fewest and most keywords of a query
FEWEST_DOCUMENTS = 20  # to hold out whole ones; of fewer, a gate would see one or two
# Sentences end at a stop before white space, at a full-width stop, and at the end of a line.
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*|\s*\n\s*")


@dataclass(frozen=True)
class PseudoQuery:
    """A query that was taken from a passage.

    Args:
        text: The query.
        origin: What it is in the passage.
        passage: The id of the passage.
    """

    text: str
    origin: QueryOrigin
    passage: str


def read_queries(path: Path, options: TableOptions | None = None) -> list[str]:
    """Read real queries, such as those of a search log.

    Args:
        path: A file with one query per line, plain or compressed (.gz, .zst).
        options: The encoding, and what becomes of lines that are not in it. None finds the encoding, and
            refuses the file if there is such a line.

    Returns:
        The distinct queries in the order of the file, with single spaces; blank lines are left out.

    Raises:
        FileNotFoundError: If there is no such file.
        DataError: If the file is a table, if lines cannot be read and are not to be skipped, or if every line
            is blank.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; expected one query per line")
    if ending(path) in READERS:
        raise DataError(f"{path} is a table ({ending(path)}); expected a text file with one query per line")
    options = options or TableOptions()
    faults = Faults(str(path), options.bad_rows)
    texts = (" ".join(line.split()) for _, line in read_lines(path, options, faults))
    queries = list(dict.fromkeys(text for text in texts if text))
    faults.log()
    if not queries:
        raise DataError(f"{path} holds no query; expected one per line")
    return queries


def pseudo_queries(passages: Mapping[str, Passage], number: int, *, seed: int = 0) -> list[PseudoQuery]:
    """Take queries from passages, evenly from all passages and of all origins.

    Args:
        passages: Passage id -> passage.
        number: Number of queries wanted, at least 1.
        seed: Seed of the order of the passages and of the choice of keywords.

    Returns:
        Distinct queries in random order: at most `number`, and fewer where the passages give no more.
    """
    cut = {key: [word.lower() for word in words(one.joined)] for key, one in passages.items()}
    holding = Counter(word for found in cut.values() for word in set(found))
    idf = {word: math.log1p(len(passages) / count) for word, count in holding.items()}
    rng = random.Random(seed)
    order = list(passages)
    rng.shuffle(order)
    # Round by round each passage gives one query, of an origin that moves on from passage to passage.
    found: dict[str, PseudoQuery] = {}
    for turn in range(len(QUERY_ORIGINS)):
        for place, key in enumerate(order):
            if len(found) == number:
                break
            origin = QUERY_ORIGINS[(turn + place) % len(QUERY_ORIGINS)]
            text = _query(origin, passages[key], cut[key], idf, rng)
            if text:
                found.setdefault(text, PseudoQuery(text, origin, key))
    queries = list(found.values())
    rng.shuffle(queries)
    return queries


def hold_out(
    taken: Sequence[PseudoQuery], passages: Mapping[str, Passage], most: int, trained: int
) -> tuple[list[PseudoQuery], list[PseudoQuery]]:
    """Divide pseudo-queries into those of a gate and those of training, which share no document.

    A model that was trained on one query of a document knows the others too well for a gate. Where there are
    fewer than `FEWEST_DOCUMENTS` documents, such as one book, the two share no passage instead. The same
    holds for a document that alone gives more queries than are to be held out.

    Args:
        taken: Queries in random order.
        passages: Passage id -> passage, of all that they were taken from.
        most: Number of queries that are held out at most.
        trained: Number of queries that are wanted for training.

    Returns:
        The queries that are held out, which are a tenth of all, or about as many as training does not want if
        these are more, and at most `most`. And those of training, at most `trained`, of which nothing beyond
        the tenth takes any away. Some queries of what is held out may be in neither.
    """
    tenth, spare = len(taken) // 10, len(taken) - trained
    wanted = min(most, max(tenth, spare))
    documents = [passages[one.passage].document for one in taken]
    sizes = Counter(documents)
    units = [  # what is held out as a whole
        document if len(sizes) >= FEWEST_DOCUMENTS and sizes[document] <= wanted else one.passage
        for one, document in zip(taken, documents, strict=True)
    ]
    chosen, found = set[str](), 0
    for unit, number in Counter(units).items():
        if found >= wanted or (found >= tenth and found + number > spare):
            break
        chosen.add(unit)
        found += number
    held = [one for one, unit in zip(taken, units, strict=True) if unit in chosen]
    rest = [one for one, unit in zip(taken, units, strict=True) if unit not in chosen]
    return held[:wanted], rest[:trained]


def _query(
    origin: QueryOrigin, passage: Passage, own: list[str], idf: Mapping[str, float], rng: random.Random
) -> str:
    """Return the query of an origin, blank if the passage has none."""
    if origin == "title":
        return _shortened(passage.title)
    if origin == "keywords":
        return _shortened(_keywords(own, idf, rng))  # without spaces a clause is one "word"
    sentences = [text for text in map(_shortened, _SENTENCE_END.split(passage.text)) if text]
    if origin == "sentence" or len(sentences) < 2:
        return sentences[0] if sentences else ""
    return max(sentences[1:], key=lambda text: _weight(text, idf))


def _shortened(text: str) -> str:
    """Return a text with single spaces, cut after the most words; blank if too few words are left."""
    cut = " ".join(text.split()[:LONGEST])
    unspaced = [letter.start() for letter in UNSPACED.finditer(cut)]
    if len(unspaced) > LONGEST * WORD_LETTERS:
        cut = cut[: unspaced[LONGEST * WORD_LETTERS]].rstrip()
    length = len(words(UNSPACED.sub(" ", cut))) + len(unspaced) / WORD_LETTERS
    return cut if length >= SHORTEST else ""


def _weight(text: str, idf: Mapping[str, float]) -> float:
    """How much a sentence says: the idf of its distinct words over the root of their number."""
    own = {word.lower() for word in words(text)}
    return sum(idf.get(word, 0.0) for word in own) / math.sqrt(len(own))


def _keywords(own: list[str], idf: Mapping[str, float], rng: random.Random) -> str:
    """Return some of the words of highest tf-idf, in the order of the text."""
    fewest, most = KEYWORDS
    counts = Counter(word for word in own if len(word) > 1 or not word.isascii())
    # At most half of the words, so that a short text gives its rare ones as well.
    best = sorted(counts, key=lambda word: (-math.log1p(counts[word]) * idf[word], word))
    best = best[: min(2 * most, max(fewest, len(best) // 2))]
    if len(best) < fewest:
        return ""
    chosen = set(rng.sample(best, min(len(best), rng.randint(fewest, most))))
    return " ".join(dict.fromkeys(word for word in own if word in chosen))
