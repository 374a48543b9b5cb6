"""The lock of a folder: of a run directory, which one process holds until it ends, or of an index."""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_FILE = "run.lock"
WHERE = 2**30  # the byte that Windows locks, beyond the text: a locked byte cannot be read
_held: dict[Path, int] = {}  # lock file -> its descriptor, whose closing gives the lock back
_taking = threading.Lock()  # held by a thread that enters or leaves a block of `locked`
logger = logging.getLogger(__name__)


def hold_for_life(folder: Path) -> None:
    """Lock a run directory until this process ends; the lock file names the process.

    The operating system keeps the lock and takes it back from a process that ends, however it ends. A process
    may lock the same folder again.

    Args:
        folder: The run directory.

    Raises:
        BlockingIOError: If another process holds the lock.
        OSError: If the lock file cannot be written.
    """
    path = folder.resolve() / LOCK_FILE
    if path in _held:
        os.close(_held.pop(path))
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _lock(file)
    except (BlockingIOError, PermissionError):  # the latter on Windows
        owner = os.read(file, 1000).decode(errors="replace").strip() or "another process"
        os.close(file)
        raise BlockingIOError(
            f"{owner} is writing in {folder}; wait until it has ended, or choose another folder"
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        logger.warning("%s cannot be locked (%s): start no second run in it", folder, error)
    try:
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    except OSError:  # a full disk must not leave the folder locked
        os.close(file)
        raise
    _held[path] = file


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A block in which this thread holds the lock of a folder, and no other thread or process does.

    Args:
        folder: The folder.

    Raises:
        BlockingIOError: If another process, or this one already, holds the lock.
        OSError: If the lock file cannot be written.
    """
    path = folder.resolve() / LOCK_FILE
    with _taking:
        if path in _held:  # the operating system refuses other processes only
            raise BlockingIOError(f"this process is writing in {folder} already; wait until it has ended")
        hold_for_life(folder)
    try:
        yield
    finally:
        with _taking:
            os.close(_held.pop(path))


def _lock(file: int) -> None:
    """Take the lock or raise an error at once; the file is left at its beginning."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(file, WHERE, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(file, 0, os.SEEK_SET)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
