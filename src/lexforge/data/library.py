"""The documents of any source as passages that fit an encoder, each with the title of its document."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lexforge.common.command_line import refuse_unread
from lexforge.common.progress import Progress
from lexforge.common.text_identity import passage_digest
from lexforge.common.types import DataError, Passage
from lexforge.data.formats import checked_format
from lexforge.data.lines import check_new_id, counted, stripped
from lexforge.data.passages import CountTokens, Cutter, Part
from lexforge.settings import SourceOptions

# Documents are cut together until they have so many characters, so that short ones are counted in one call.
_BLOCK_CHARACTERS = 2**22


@dataclass(frozen=True)
class Library:
    """The passages of a source.

    Args:
        passages: Id -> passage, in the order of the source.
        repeated: Id -> passage that is not among them, because it repeats an earlier one.
        documents: The ids of all documents that were read, also of those without a passage, because their
            texts are blank or repeat earlier ones.
        notes: What was left out, cut or guessed, one line each, with the number and up to three examples.
        numbered: Whether documents without an id got their number, from 1, as those of other files do.
    """

    passages: dict[str, Passage]
    repeated: dict[str, Passage]
    documents: set[str]
    notes: list[str]
    numbered: bool = False

    @property
    def texts(self) -> dict[str, str]:
        """Return id -> title and text joined by a space."""
        return {key: passage.joined for key, passage in self.passages.items()}


def load_library(
    source: str,
    options: SourceOptions | None = None,
    *,
    count_tokens: CountTokens | None = None,
    max_tokens: int | None = None,
    keep_all: bool = False,
) -> Library:
    """Read the documents of a source, and cut long ones into passages.

    A document is cut between paragraphs (blank lines), then at the ends of sentences, then at the ends of
    lines, then between words, and at last inside a word that is too long; neighbouring parts are put together
    up to the limit. Each part of a text is counted once per level of this cutting, and each passage once
    more.

    A title that takes more than half of the limit is not repeated: it stands once, at the beginning of the
    text.

    Args:
        source: A name that `lexforge.data.load_documents` takes: a folder of texts, a folder in BEIR layout
            or its `corpus.jsonl`, rows of texts, a data set of the hub.
        options: Names of columns.
        count_tokens: Texts -> number of tokens of each, with the special tokens that an encoder adds.
        max_tokens: The limit for a passage with its title; None cuts nothing.
        keep_all: Whether blank and repeated passages stay, because judgements may name their documents.

    Returns:
        The passages. The id of a document that stays whole is its own; parts are `<id>#1`, `<id>#2` and so
        on. Without `keep_all` blank passages are left out, and so are those that repeat an earlier one up to
        white space.

    Raises:
        ValueError: If only one of `count_tokens` and `max_tokens` is given, or if the limit leaves no room.
        FileNotFoundError: If the source does not exist.
        DataError: If the source cannot be used, if an id is empty or occurs twice, or if no text is left.
    """
    if (max_tokens is None) != (count_tokens is None):
        raise ValueError("max_tokens and count_tokens belong together; received one of them")
    cutter = None if count_tokens is None or max_tokens is None else Cutter(count_tokens, max_tokens)
    shelf = _Shelf(max_tokens, keep_all)
    notes: list[str] = []
    options = options or SourceOptions()
    refuse_unread(options, ["weight_column"], "documents have none")
    records = checked_format(source, options).titled(source, options, notes)
    with Progress(None, "reading documents") as progress:
        for block in _blocks(_checked(records, shelf)):
            texts = [(title, text) for _, title, text in block]
            cut = [[Part(*each)] for each in texts] if cutter is None else cutter.cut(texts)
            for (key, title, _), parts in zip(block, cut, strict=True):
                shelf.add(key, title, parts)
            progress.update(len(block))
    shelf.refuse_made_ids()
    notes += shelf.notes()
    if not shelf.passages:
        raise DataError("; ".join([f"{source} holds no text", *notes]))
    return Library(shelf.passages, shelf.repeated, shelf.documents, notes, shelf.numbered)


class _Shelf:
    """Collects passages, and remembers what was left out."""

    def __init__(self, max_tokens: int | None, keep_all: bool) -> None:
        self.documents: set[str] = set()  # the ids of all
        self.numbered = False
        self.passages: dict[str, Passage] = {}
        self.repeated: dict[str, Passage] = {}
        self._max_tokens = max_tokens
        self._keep_all = keep_all
        self._first: dict[bytes, str] = {}  # digest of a text -> the passage that has it
        self._made: dict[str, str] = {}  # id of a part -> that of its document
        self._found: defaultdict[str, list[str]] = defaultdict(list)  # name of a note -> ids

    def add(self, document: str, title: str, parts: Sequence[Part]) -> None:
        """Add a document as it was cut."""
        if len(parts) > 1:
            self._found["cut"].append(document)
        if title and not parts[0].title:
            self._found["moved"].append(document)
        for number, (part_title, text) in enumerate(parts, 1):
            key = document
            if len(parts) > 1:
                key = f"{document}#{number}"
                self._made[key] = document
            passage = Passage(part_title, text, document)
            if self._keep_all or not self._left_out(key, passage):
                self.passages[key] = passage

    def _left_out(self, key: str, passage: Passage) -> bool:
        """Whether a passage says nothing, or nothing new; remember it then."""
        digest = passage_digest(passage)
        if digest is None:
            self._found["blank"].append(key)
        elif digest in self._first:
            self.repeated[key] = passage
            self._found["repeated"].append(f"{key} (as {self._first[digest]})")
        else:
            self._first[digest] = key
            return False
        return True

    def refuse_made_ids(self) -> None:
        """Refuse a document that has the id of a part of another one."""
        for key, document in self._made.items():
            if key in self.documents:
                raise DataError(
                    f"the document {key!r} has the id that a part of the long document {document!r} gets; "
                    "rename one of them"
                )

    def notes(self) -> list[str]:
        """Return what was cut and left out, one line each."""
        limit = f"{self._max_tokens:,} tokens" if self._max_tokens is not None else ""
        what = {
            "cut": f"documents cut into {len(self._made):,} passages of at most {limit}",
            "moved": f"titles of more than half of {limit}, which stand once in the text",
            "blank": "blank texts, which were left out",
            "repeated": "texts that repeat an earlier one, which were left out",
        }
        found = self._found
        return [f"{words}: {counted(found[name])}" for name, words in what.items() if name in found]


def _checked(
    records: Iterable[tuple[object, str | int, str, str]], shelf: _Shelf
) -> Iterator[tuple[str, str, str]]:
    """Yield id, title and text of each record, and add the id to those of the shelf."""
    for where, found, title, text in records:
        key = str(found)
        check_new_id(where, key, shelf.documents)
        shelf.documents.add(key)
        shelf.numbered |= isinstance(found, int)
        yield key, stripped(title), stripped(text)


def _blocks(records: Iterable[tuple[str, str, str]]) -> Iterator[list[tuple[str, str, str]]]:
    """Yield neighbouring records together."""
    block: list[tuple[str, str, str]] = []
    characters = 0
    for record in records:
        block.append(record)
        characters += 1000 + len(record[1]) + len(record[2])  # short ones are limited in number
        if characters >= _BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
    if block:
        yield block
