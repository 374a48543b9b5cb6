"""Documents alone: a folder of text, Markdown, HTML and PDF files, or one such file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from lexforge.common.types import DataError
from lexforge.data.faults import Faults
from lexforge.data.lines import counted
from lexforge.data.splits import no_judgements
from lexforge.data.text_files import ENDINGS, BlankFile, UnreadableFile, check_readers, read_file
from lexforge.settings import SourceOptions

NAME = "documents (a folder of .txt, .md, .rst, .html and .pdf files, or one such file)"


def matches(source: str) -> bool:
    """Return whether a source is such a file, or a folder with one anywhere in it."""
    path = Path(source)
    if path.is_dir():
        return any(is_text(name) for name in names_below(path))
    return path.is_file() and is_text(path.name)


def split_names(source: str, options: SourceOptions) -> NoReturn:
    """Refuse the source, because nothing says what a query is; see `Format.split_names`."""
    _refuse(source)


def open(source: str, options: SourceOptions, splits: Sequence[str] | None, faults: Faults) -> NoReturn:
    """Refuse the source, because nothing says what a query is; see `Format.open`."""
    _refuse(source)


def with_text(
    records: Iterable[tuple[object, str | int, str, str]], notes: list[str]
) -> Iterator[tuple[object, str | int, str, str]]:
    """Yield the records of `titled` that say something, and note the ids of the others."""
    blank: list[str] = []
    for record in records:
        _, key, title, body = record
        if title or body:
            yield record
        else:
            blank.append(str(key))
    if blank:
        notes.append(f"files without text, which were left out: {counted(blank)}")


def titled(source: str, options: SourceOptions, notes: list[str]) -> Iterator[tuple[object, str, str, str]]:
    """Yield where each file stands, its id, title and body, and take notes; see `Format.titled`.

    A file without text has an empty title and an empty body: an index that holds it must forget what it said.

    The id is the path below the folder, with `/` between its parts; that of a single file is its name. Hidden
    files and folders are left out. A folder that a link leads to is read once, and not at all if the source
    is a part of it.

    Raises:
        DataError: If no file can be read; the message lists what was found.
        ImportError: If the package for PDF or HTML files is missing; the message names the extra.
    """
    path = Path(source)
    names = names_below(path) if path.is_dir() else [path.name]
    folder = path if path.is_dir() else path.parent
    unreadable = [f"{name} (no permission to list it)" for name in names if name.endswith("/")]
    unknown = [name for name in names if not is_text(name) and not name.endswith("/")]
    names = [name for name in names if is_text(name)]
    check_readers({_ending(name) for name in names})
    decoded: list[str] = []
    broken: list[str] = []
    blank: list[str] = []
    read = 0
    for name in names:
        key = name.encode("utf-8", "backslashreplace").decode("utf-8")  # a name may be no text
        try:
            found = read_file(folder / name, options.codec)
        except BlankFile as error:
            blank.append(f"{key} ({error})")
            yield folder / name, key, "", ""
            continue
        except UnreadableFile as error:
            unreadable.append(f"{key} ({error})")
            continue
        read += 1
        if found.decoded_as:
            decoded.append(f"{key} ({found.decoded_as})")
        if found.broken_pages:
            broken.append(f"{key} ({found.broken_pages})")
        yield folder / name, key, found.title, found.body
    if not read:
        raise DataError(f"{source}: no file can be read: {counted(sorted(unreadable + blank))}")
    for what, files in (
        ("files that could not be read", unreadable),
        ("files that are not UTF-8, read in the encoding that fits", decoded),
        ("PDF files with broken pages, which were left out", broken),
        ("files of other kinds, which were not read", unknown),
    ):
        if files:
            notes.append(f"{what}: {counted(files)}")


def _refuse(source: str) -> NoReturn:
    """Say what a source holds, and which command takes it."""
    path = Path(source)
    names = names_below(path) if path.is_dir() else [path.name]
    endings = Counter(_ending(name) for name in names if is_text(name))
    found = ", ".join(f"{number:,} {ending}" for ending, number in endings.most_common())
    what = "folder" if path.is_dir() else "file"
    raise no_judgements(source, f"the {what} holds documents ({found})")


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def is_text(name: str) -> bool:
    """Return whether the ending of a file's name is that of a text."""
    return _ending(name) in ENDINGS


def names_below(folder: Path) -> list[str]:
    """Return the paths below a folder of all that is in it but folders, sorted, without what is hidden.

    A folder that cannot be read is among them with `/` at its end.
    """
    found: list[str] = []
    top, visited = Path(os.path.realpath(folder)), set[str]()

    def unread(error: OSError) -> None:
        found.append(f"{os.path.relpath(error.filename, folder)}/")

    for place, folders, files in os.walk(folder, onerror=unread, followlinks=True):
        real, below = os.path.realpath(place), Path(place).relative_to(folder)
        if real in visited or (below.parts and top.is_relative_to(real)):  # a link leads to it
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [(below / name).as_posix() for name in files if not name.startswith(".")]
    return sorted(found)
