"""Atomic writing, and the folder of the user's cache.

A file or a folder is written beside its place and renamed, so it is whole or absent.

What is being written beside `<name>` is called `<name>.<process id>-<digits>.partial`. The name is unique,
so several processes may write the same thing at once; and it is recognisable, so that what a killed process
left can be removed (`remove_leftovers`) and nothing else is. The first half of the digits tells where the
process id counts, so that a later process knows whether the writer is alive.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

DISK_IS_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # full, over a quota, or over the process's limit
LEFTOVER_SECONDS = 3600.0  # nothing is written to for so long: what is older was left by a killed process
# The name that it would get, the id of the process that writes it, and where that id counts (`_processes`).
_PARTIAL = re.compile(
    r"(?P<name>.+)\.(?P<process>\d{1,9})-(?P<processes>[0-9a-f]{8})[0-9a-f]{8}\.partial", re.DOTALL
)


def cache_folder(*names: str) -> Path:
    """Return a folder of the user's cache, which is made if it is missing.

    Args:
        *names: Folders below `lexforge` in `$XDG_CACHE_HOME`, or in `~/.cache` where that is not set.

    Raises:
        OSError: If the folder cannot be made, or the user has no home directory; a note names the variable.
    """
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache")
        folder = cache.joinpath("lexforge", *names)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        error.add_note("the environment variable XDG_CACHE_HOME names another folder for the cache")
        raise
    return folder


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:  # a container may run under a user id without a name, and without HOME
        raise FileNotFoundError("the user of this process has no home directory") from error


def write_file(path: Path, content: bytes | Callable[[Path], object], *, durable: bool = False) -> None:
    """Write a file beside its place and rename it: a killed process leaves the old file or the new one.

    Args:
        path: The file; what it held is replaced.
        content: Its bytes, or a function that writes them to the path it is given. That path lies in a folder
            of its own, because safetensors makes a file beside it, which a killed process would leave.
        durable: Bring the file and its name to the disk before returning, for what must survive a power cut.

    Raises:
        OSError: If the file cannot be written; the error names it, and nothing is left beside it.
    """
    beside = _beside(path)
    place = beside / path.name if callable(content) else beside
    try:
        with _errors_name(path, beside), _errors_name(path, place):
            if callable(content):
                beside.mkdir()
                content(place)
            else:
                place.write_bytes(content)
            if durable:
                sync(place)
        os.replace(place, path)
        if durable:
            sync(path.parent)
    finally:
        if callable(content):
            shutil.rmtree(beside, ignore_errors=True)
        else:
            with suppress(FileNotFoundError, NotADirectoryError):
                beside.unlink()


def write_text(path: str | Path, text: str) -> None:
    """Write text in UTF-8 where the user asked for it, packed where the name ends in .gz or .zst.

    A killed process leaves the old file or the new one. A link stays, and what it leads to is written, as is
    a pipe or a device such as /dev/stdout.

    Args:
        path: The file; an existing one is replaced.
        text: Its content, with line feeds as line ends.

    Raises:
        OSError: If it cannot be written; the error names it.
    """
    path = Path(path)
    data = text.encode("utf-8")
    if path.name.endswith(".gz"):
        data = gzip.compress(data, mtime=0)  # without the time, so that equal texts are equal files
    elif path.name.endswith(".zst"):
        import pyarrow  # here, because most processes that write need it not

        data = pyarrow.compress(data, codec="zstd", asbytes=True)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        with _errors_name(path):
            path.write_bytes(data)
    else:
        write_file(path, data)


@contextmanager
def _errors_name(path: Path, beside: Path | None = None) -> Iterator[None]:
    """A block that writes; where the disk is full, Python names no file, and the error gets the name here.

    Args:
        path: What is written.
        beside: Where it is written for now; an error names its place instead.

    Raises:
        OSError: That of the block, with the name.
    """
    try:
        yield
    except OSError as error:
        if error.errno in DISK_IS_FULL and error.filename is None:
            error.filename = str(path)
        elif error.filename is not None and beside is not None:
            error.filename = str(error.filename).replace(str(beside), str(path))
        elif error.errno is None and type(error) is OSError:  # numpy says how many values were written
            error.args = (f"{error}, while {path} was written",)
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
    beside = _beside(path)
    beside.mkdir()
    if path.is_dir():
        shutil.copymode(path, beside)  # an empty folder that only its owner may read stays that way
    try:
        with _errors_name(path, beside):
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
        OSError: If nothing can be written there.
    """
    path = Path(directory)
    if os.path.ismount(path):  # `Path.is_mount` of Python 3.11 does not work on Windows
        raise FileExistsError(f"{path} is a mount point; choose a new directory inside it")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"{path} exists and is not an empty directory; choose a new one")
    check_can_be_made(path)


def check_can_be_made(folder: Path) -> None:
    """Refuse a folder that cannot be made, before the work whose results it is to hold.

    Args:
        folder: The folder; those above it need not be there.

    Raises:
        NotADirectoryError: If one above it is a file.
        OSError: If nothing can be written there.
    """
    above = next(place for place in folder.resolve().parents if place.exists())
    if not above.is_dir():
        raise NotADirectoryError(f"the folder {folder} cannot be made, because {above} is a file")
    _check_writable(above)


def check_output_file(path: Path, flag: str = "--output") -> None:
    """Refuse a file that could not be written, before the work whose result it is to hold.

    Args:
        path: The file.
        flag: The option that names it.

    Raises:
        FileNotFoundError: If its folder does not exist.
        IsADirectoryError: If it is a folder.
        OSError: If nothing can be written there.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        return  # a pipe or a device such as /dev/stdout, into which `write_text` writes
    if not path.resolve().parent.is_dir():
        raise FileNotFoundError(f"the folder of {path} does not exist")
    if path.is_dir():
        raise IsADirectoryError(f"{flag} must name a file; {path} is a folder")
    _check_writable(path.resolve().parent)


def _check_writable(folder: Path) -> None:
    """Refuse a folder in which no file can be made; what its permissions say does not tell (root, NFS)."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            error.errno, f"no file can be written: {os.strerror(error.errno or 0)}", str(folder)
        ) from error


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
        if sys.platform == "win32" and place.is_dir():
            place.rmdir()  # Windows moves no folder to the place of another one, not even of an empty one
        os.replace(beside, place)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EACCES):
            check_new(place)
        raise
    if durable:
        sync(place.parent)


def sync(path: Path) -> None:
    """Bring the content of a file, or the names in a folder, to the disk.

    Windows opens no folder, so names are left to its file system there, and it flushes a file only through a
    descriptor that may write.
    """
    windows = sys.platform == "win32"
    if windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def finished_name(name: str) -> str:
    """Return the name that a half-written file or folder would have got, and any other name as it is."""
    found = _PARTIAL.fullmatch(name)
    return name if found is None else found["name"]


def remove_leftovers(folder: Path, names: str) -> None:
    """Remove what killed processes left half written.

    What was changed within `LEFTOVER_SECONDS` may still be being written, and stays unless its process is
    known to be dead.

    Args:
        folder: Where to look; folders in it are not searched.
        names: Regular expression of the whole names that the leftovers would have got.
    """
    for path in list(folder.iterdir()):
        found = _PARTIAL.fullmatch(path.name)
        if found is None or re.fullmatch(names, found["name"]) is None:
            continue
        # Another process removes it or has just finished it, or it belongs to another user.
        with suppress(FileNotFoundError, PermissionError):
            if time.time() - _changed(path) <= LEFTOVER_SECONDS and not _writer_is_dead(found):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)  # its process may be alive, and write into it
            else:
                path.unlink()


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}-{_processes()}{secrets.token_hex(4)}.partial")


@cache
def _processes() -> str:
    """Eight digits that stand for all processes whose ids this process can look up, and for no others.

    On Linux these are the processes of one container since the machine was started. Elsewhere the digits are
    random, so that no other process is looked up: on Windows the question itself would end it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        return hashlib.sha256(boot + os.readlink("/proc/self/ns/pid").encode()).hexdigest()[:8]
    except OSError:
        return secrets.token_hex(4)


def _writer_is_dead(found: re.Match[str]) -> bool:
    """Return whether the process that began a half-written file or folder is known to have ended."""
    process = int(found["process"])
    if found["processes"] != _processes() or process == os.getpid():
        return False
    try:
        os.kill(process, 0)  # sends nothing, and fails where there is no such process
    except OSError as error:
        return error.errno == errno.ESRCH
    return False


def _changed(path: Path) -> float:
    """Time of the last change of a file, or of anything in a folder, in seconds since 1970."""
    inside = path.rglob("*") if path.is_dir() and not path.is_symlink() else ()
    return max(entry.lstat().st_mtime for entry in (path, *inside))
