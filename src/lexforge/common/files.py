"""Atomic writing: a file or a folder is written beside its place and renamed, so it is whole or absent.

What is being written beside `<name>` is called `<name>.<process id>-<random digits>.<rank>.partial`. The name
is unique, so several processes may write the same thing at once; and it is recognisable, so that what a
killed process left can be removed (`remove_leftovers`) and nothing else is.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

LEFTOVER_SECONDS = 3600.0  # nothing is written to for so long: what is older was left by a killed process
ATTEMPTS = 10  # a process that starts removes a leftover once, so a second attempt nearly always succeeds
_PARTIAL = re.compile(r"(.+)\.\d+-[0-9a-f]{16}\.(\d+)\.partial", re.DOTALL)


class Leftover(NamedTuple):
    """What the name of a half-written file or folder says.

    Args:
        name: The name that it would have got.
        rank: The rank of the process that wrote it.
    """

    name: str
    rank: int


def write_file(path: Path, content: bytes | Callable[[Path], object], rank: int = 0) -> None:
    """Write a file beside its place and rename it: a killed process leaves the old file or the new one.

    Args:
        path: The file; what it held is replaced.
        content: Its bytes, or a function that writes them to the path it is given.
        rank: This process, so that ranks tell their leftovers apart.

    Raises:
        OSError: If the file cannot be written; nothing is left beside it.
    """
    for attempt in range(ATTEMPTS):
        beside = _beside(path, rank)
        try:
            if callable(content):
                content(beside)
            else:
                beside.write_bytes(content)
            os.replace(beside, path)
            return
        except BaseException as error:
            # Another process that starts at this moment may take the file for a leftover and remove it.
            removed = isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ESTALE)
            with suppress(FileNotFoundError, NotADirectoryError):
                beside.unlink()
            if not removed or attempt == ATTEMPTS - 1 or not path.parent.is_dir():
                raise


@contextmanager
def new_directory(directory: str | Path, *, keep_existing: bool = False) -> Iterator[Path]:
    """Fill a folder beside its place and rename it when the `with` block ends without an error.

    Args:
        directory: The place; absent or an empty folder. Its parents are created.
        keep_existing: Where another process has filled the place meanwhile with the same content, drop ours
            and raise no error.

    Yields:
        The folder beside, to be filled. It is removed if the block raises an error.

    Raises:
        FileExistsError: If the place is a file or holds anything, so that nothing is overwritten.
    """
    path = Path(directory).resolve()  # a link to an empty folder stays, and the folder is replaced
    if not keep_existing:
        check_new(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, re.escape(path.name))
    beside = _beside(path, rank=0)
    beside.mkdir()
    if path.is_dir():
        shutil.copymode(path, beside)  # an empty folder that only its owner may read stays that way
    try:
        yield beside
        try:
            publish(beside, path)
        except FileExistsError:
            if not keep_existing:
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def check_new(directory: str | Path) -> None:
    """Refuse, before any work, a place that `new_directory` would refuse.

    Args:
        directory: Where a folder is to be written.

    Raises:
        FileExistsError: If it is a file, a folder that holds anything, or the mount point of a file system,
            which cannot be renamed.
    """
    path = Path(directory)
    if path.is_mount():
        raise FileExistsError(f"{path} is a mount point; choose a new directory inside it")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"{path} exists and is not an empty directory; choose a new one")


def publish(beside: Path, place: Path, *, durable: bool = False) -> None:
    """Move a finished folder to its place, in one step that happens or does not.

    Args:
        beside: The folder, on the same file system.
        place: Absent or an empty folder.
        durable: Bring the new name to the disk before returning, for what must survive a power cut.

    Raises:
        FileExistsError: If the place is a file or holds anything.
    """
    try:
        os.replace(beside, place)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            check_new(place)
        raise
    if durable:
        sync(place.parent)


def sync(path: Path) -> None:
    """Bring the content of a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def leftover(name: str) -> Leftover | None:
    """Return what the name of a half-written file or folder says, or None for any other name."""
    match = _PARTIAL.fullmatch(name)
    return None if match is None else Leftover(match[1], int(match[2]))


def remove_leftovers(
    folder: Path, names: str, *, rank: int = 0, ranks: int = 1, older_than_s: float = LEFTOVER_SECONDS
) -> None:
    """Remove what killed processes left half written.

    Args:
        folder: Where to look; folders in it are not searched.
        names: Regular expression of the whole names that the leftovers would have got.
        rank: This process.
        ranks: Number of processes; only leftovers of rank `rank`, `rank + ranks`, ... are removed.
        older_than_s: Seconds since the last change; what is younger may still be being written. With 0 a
            living process may lose a file that it writes, and `write_file` then writes it again.
    """
    for path in list(folder.iterdir()):
        found = leftover(path.name)
        if found is None or re.fullmatch(names, found.name) is None or found.rank % ranks != rank:
            continue
        # Another process removes it or has just finished it, or it belongs to another user.
        with suppress(FileNotFoundError, PermissionError):
            if older_than_s and time.time() - _changed(path) <= older_than_s:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _beside(path: Path, rank: int) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(8)}.{rank}.partial")


def _changed(path: Path) -> float:
    """Time of the last change of a file, or of anything in a folder, in seconds since 1970."""
    inside = path.rglob("*") if path.is_dir() and not path.is_symlink() else ()
    return max(entry.lstat().st_mtime for entry in (path, *inside))
