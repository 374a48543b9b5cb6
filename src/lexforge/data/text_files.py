"""One document file as a title and a body: plain text, Markdown, HTML or PDF.

Every step but the parser of Markdown takes time in proportion to the file, also where the file is hostile.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from lexforge.common.extras import missing_extra
from lexforge.common.silent import silent
from lexforge.common.text_identity import title_of_name
from lexforge.data.encodings import SAMPLE_BYTES, fitting_encoding
from lexforge.data.lines import BYTE_ORDER_MARK, stripped

if TYPE_CHECKING:
    import pypdf

ENDINGS = (".txt", ".md", ".markdown", ".rst", ".html", ".htm", ".pdf")
_HTML_ENDINGS = (".html", ".htm")
_DECLARED = re.compile(rb"""charset\s{0,9}=\s{0,9}["']?([A-Za-z0-9_-]{2,40})""")

_FRONT_TITLE = re.compile(r"title:(.*)", re.IGNORECASE)
_BLOCK_VALUE = re.compile(r"[|>][-+\d]{0,2}")  # of YAML: the value is the indented lines that follow

_UNSEEN = set("script style nav noscript template head svg iframe object canvas audio video".split())
_BLOCKS = set(
    "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 header hr html legend li main menu ol option p pre search section "
    "summary table tbody tfoot thead title tr ul".split()
)
_CELLS = {"td", "th"}
_BREAK = "\ufdd0"  # the end of a line that is shown; no character of any text

_NO_TITLE = re.compile(
    r"(microsoft (word|powerpoint|excel) - |untitled|title$|document ?\d*$|presentation ?\d*$)|"
    r".{0,300}\.(docx?|pdf|tex|dvi|indd|pptx?|xlsx?|odt|rtf|qxd|pmd|html?)$",
    re.IGNORECASE,
)


class UnreadableFile(ValueError):
    """A file without a text that can be read; the message says why, in a few words."""


class BlankFile(UnreadableFile):
    """A file that was read and says nothing."""


@dataclass(frozen=True)
class FileText:
    """What a file says.

    Args:
        title: Its title, on one line.
        body: Its text without the line of the title; a blank line ends a paragraph.
        decoded_as: The encoding that was found by a guess or by its declaration; "" for UTF-8, and for UTF-16
            with its mark.
        broken_pages: Number of pages of a PDF that could not be read.
    """

    title: str
    body: str
    decoded_as: str = ""
    broken_pages: int = 0


def check_readers(endings: Collection[str]) -> None:
    """Load the packages that files with these endings need.

    Args:
        endings: Endings of `ENDINGS`.

    Raises:
        ImportError: If one is missing; the message names the extra.
    """
    try:
        if ".pdf" in endings:
            import pypdf  # noqa: F401 - the import is the check
        if set(_HTML_ENDINGS) & set(endings):
            import lxml.etree  # noqa: F401 - so is this
    except ImportError as error:
        raise missing_extra("reading PDF and HTML files", "documents", error) from None


def read_file(path: Path, encoding: str | None = None) -> FileText:
    """Read one file.

    Args:
        path: A file with an ending of `ENDINGS`.
        encoding: The encoding of a file that is no PDF, as Python names it; None takes UTF-8, and guesses
            where it does not fit. The mark of UTF-16 at the beginning of a file counts in any case.

    Returns:
        Title and body. The title is the one that the file gives itself, or else the name of the file without
        its ending, with spaces for `_` and `-`.

    Raises:
        UnreadableFile: If the file cannot be read, is binary, broken or encrypted; a `BlankFile` if it holds
            no text.
        ImportError: If the package that reads it is missing; the message names the extra.
    """
    ending, how, broken = path.suffix.lower(), "", 0
    check_readers({ending})
    try:
        if not path.is_file():  # a pipe would be waited for
            raise UnreadableFile("no file")
        if ending == ".pdf":
            title, body, broken = _pdf(path)
        else:
            text, how = _decode(path.read_bytes(), encoding, html=ending in _HTML_ENDINGS)
            title, body = _PARTS[ending](text)
    except OSError as error:
        raise UnreadableFile(error.strerror or type(error).__name__) from error
    title, body = stripped(_one_line(title)), stripped(body)
    if not body and not title:
        raise BlankFile("no text")
    name = title or title_of_name(path)
    first, _, rest = body.partition("\n")
    if _one_line(first) == name:
        body = rest.strip()
    body = re.sub(r"\n{3,}", "\n\n", body)
    return FileText(_without_halves(name), _without_halves(body), how, broken)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _without_halves(text: str) -> str:
    """Return a text that UTF-8 can hold; names of files and fonts of a PDF may give half a surrogate pair."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _decode(data: bytes, encoding: str | None, *, html: bool) -> tuple[str, str]:
    """Return the text of a file with line feeds as line ends, and its encoding if that was guessed."""
    how = ""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            text = data.decode("utf-16")
        except UnicodeDecodeError as error:
            raise UnreadableFile("not UTF-16 after its byte order mark") from error
    elif encoding is not None:
        try:
            text = data.decode(encoding).removeprefix(BYTE_ORDER_MARK)
        except UnicodeError as error:
            raise UnreadableFile(f"not {encoding}") from error
    else:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            text, how = _decode_other(data, error.start, html=html)
    if "\0" in text:
        raise UnreadableFile("binary")
    return text.replace("\r\n", "\n").replace("\r", "\n"), how


def _decode_other(data: bytes, start: int, *, html: bool) -> tuple[str, str]:
    """Return the text of bytes that are not UTF-8, and the encoding.

    Args:
        data: The bytes.
        start: Where the first byte stands that is not UTF-8.
        html: Whether the file may declare its encoding.
    """
    # A few wrong bytes in a long UTF-8 file, such as one that was cut: another encoding spoils all the rest.
    text = data.decode("utf-8-sig", "replace")
    wrong = text.count("\ufffd")
    letters = len(text) - len(text.encode("ascii", "ignore"))  # beyond ASCII, with the wrong ones
    if wrong * 20 <= letters:
        return text, f"UTF-8 with wrong bytes: {wrong}"
    declared = _DECLARED.search(data[:2048]) if html else None
    encoding = declared[1].decode().lower() if declared else ""
    if encoding and not encoding.startswith("utf"):
        encoding = {"iso-8859-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252"}.get(encoding, encoding)
        try:
            return data.decode(encoding), encoding
        except (LookupError, UnicodeDecodeError):
            pass  # the declaration is wrong, which is common
    encoding = _detect_encoding(data, start)
    try:
        return data.decode(encoding), encoding
    except (LookupError, UnicodeDecodeError) as error:
        raise UnreadableFile("binary or in an unknown encoding") from error


def _detect_encoding(data: bytes, start: int) -> str:
    """Return the encoding that fits the lines beyond ASCII behind a place; "" if none does."""
    # No byte of a letter is a line feed in any of the encodings, so lines are safe places to cut.
    begin = data.rfind(b"\n", max(0, start - SAMPLE_BYTES), start) + 1 or start
    lines = (line for line in data[begin : begin + 16 * SAMPLE_BYTES].split(b"\n") if not line.isascii())
    return fitting_encoding(b"\n".join(lines))


def _plain(text: str) -> tuple[str, str]:
    return "", text


def _markdown(text: str) -> tuple[str, str]:
    """Return the first heading, and the text of the other blocks as paragraphs, without marks and links."""
    from markdown_it import MarkdownIt

    title, lines = _front_matter(text.split("\n"))
    parts: list[str] = []
    of_heading = False
    for token in MarkdownIt("commonmark").parse("\n".join(lines)):
        words = token.content if token.type in ("fence", "code_block", "html_block") else ""
        if token.type == "inline":
            words = "".join("\n" if "break" in part.type else part.content for part in token.children or ())
        if of_heading and not title:
            title = words
        elif words:
            parts.append(words)
        of_heading = token.type == "heading_open"
    return title, "\n\n".join(parts)


def _front_matter(lines: list[str]) -> tuple[str, list[str]]:
    """Return the title in the block of settings that some tools put before Markdown, and the other lines."""
    if lines[0].rstrip() != "---":
        return "", lines
    for place, line in enumerate(lines[1:], 1):
        if line.rstrip() in ("---", "..."):
            return _front_title(lines[1:place]), lines[place + 1 :]
        if not line.strip():  # a line between two rules is no such block
            return "", lines
    return "", lines


def _front_title(settings: list[str]) -> str:
    """Return the title among the lines of settings; "" if there is none."""
    for place, line in enumerate(settings, 1):
        if found := _FRONT_TITLE.match(line):
            value = found[1].strip()
            if _BLOCK_VALUE.fullmatch(value):
                block = takewhile(lambda line: line.startswith((" ", "\t")), settings[place:])
                return " ".join(line.strip() for line in block)
            return value.strip("\"'")
    return ""


def _html(text: str) -> tuple[str, str]:
    """Return the title, or else the first heading, and the visible text; a block element is a paragraph."""
    from lxml import etree

    parser = etree.HTMLParser(
        encoding="utf-8", huge_tree=True, no_network=True, remove_comments=True, remove_pis=True
    )
    page = etree.fromstring(text.encode("utf-8"), parser)
    if page is None:  # there is no element
        return "", ""
    title = _one_line("".join(page.xpath("string(//head//title)")))
    for element in page.xpath("//pre/descendant-or-self::*"):
        element.text = (element.text or "").replace("\n", _BREAK)
        if element.tag != "pre":
            element.tail = (element.tail or "").replace("\n", _BREAK)
    for element in page.iter():
        border = 2 * _BREAK if element.tag in _BLOCKS else " " if element.tag in _CELLS else ""
        element.text = border + (element.text or "")
        element.tail = (_BREAK if element.tag == "br" else border) + (element.tail or "")
    for element in page.xpath("//*[@hidden]"):
        element.tag = "template"  # is removed with those
    etree.strip_elements(page, *_UNSEEN, with_tail=False)
    heading = next(page.iter("h1"), None)
    if heading is not None:
        words = _one_line("".join(heading.itertext()).replace(_BREAK, " "))
        title = title or words
        if words == title:
            heading.clear(keep_tail=True)
    shown = "".join(page.itertext()).replace("\n", " ").replace("\xad", "")
    return title, "\n".join(map(_one_line, shown.split(_BREAK)))


def _pdf(path: Path) -> tuple[str, str, int]:
    """Return the title and the text of a PDF, and the number of pages that could not be read."""
    import pypdf
    from pypdf.errors import DependencyError

    pages: list[str] = []
    broken = 0
    with silent("pypdf"), path.open("rb") as stream:  # it warns of each oddity of a file
        try:
            reader = pypdf.PdfReader(stream)
            if reader.is_encrypted and not reader.decrypt(""):
                raise UnreadableFile("encrypted")
            title = _sensible_title(reader)
            count = len(reader.pages)
        except (OSError, UnreadableFile):
            raise
        except DependencyError as error:
            raise UnreadableFile("encrypted") from error
        except Exception as error:  # a broken file raises whatever the parser stumbles on, such as KeyError
            raise UnreadableFile("broken PDF") from error
        for number in range(count):
            try:
                pages.append(reader.pages[number].extract_text())
            except Exception:  # as above
                broken += 1
    body = "\n\n".join(pages).replace("\0", "")
    if not body.strip():
        raise UnreadableFile("broken PDF") if broken else BlankFile("PDF without text")
    return title, body, broken


def _sensible_title(reader: pypdf.PdfReader) -> str:
    """Return the title that a PDF gives itself, unless a program made it up; "" if there is none."""
    title = _one_line(str((reader.metadata and reader.metadata.title) or ""))
    known = 2 < len(title) <= 300 and any(map(str.isalpha, title)) and not _NO_TITLE.match(title)
    return title if known else ""


_PARTS: dict[str, Callable[[str], tuple[str, str]]] = {
    ".txt": _plain,
    ".md": _markdown,
    ".markdown": _markdown,
    ".rst": _plain,
    ".html": _html,
    ".htm": _html,
}
