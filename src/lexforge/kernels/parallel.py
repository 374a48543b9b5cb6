"""Compiled loops on the threads of numba, and on one thread where those would end or hang the process.

Threads do not survive a fork. With GNU OpenMP, which numba usually finds on Linux, a forked process ends as
soon as it asks for them, so every forked process runs its loops on one thread. Where numba finds neither
OpenMP nor TBB, its threads serve one loop at a time, and two loops at once end the process; the second one
waits here.

numba and torch share one OpenMP. As its threads start, numba tells OpenMP their number, and the thread that
starts them would have torch take as many from then on. So they are started by a thread that does nothing
else.

numba keeps what it has compiled until the file of the loop changes. A loop would go on with the old code of
a function that it calls from another file. So each version of these files has a folder of its own.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FunctionType
from typing import Any

import numba

from lexforge.storage.files import cache_folder

_ONE_AT_A_TIME = threading.Lock()
_most: int | None = None  # threads of a loop; None is as many as numba has


def limit_threads(number: int) -> None:
    """Let the loops of `parallel` run on no more than so many threads, whatever thread calls them.

    numba takes every core unless `NUMBA_NUM_THREADS` is set, and its threads wait in a busy loop for a core
    that another process uses. Whoever gives OpenMP, and so torch, fewer cores means these loops too.

    Args:
        number: At least 1.
    """
    global _most
    _most = number
    if not _forked():  # the calling thread may have had a lower limit before
        numba.set_num_threads(min(number, numba.config.NUMBA_NUM_THREADS))


def threads() -> int:
    """Return how many threads the loops of `parallel` run on in this process."""
    if _forked():
        return 1
    _apply_limit()
    return numba.get_num_threads()


@contextmanager
def at_most(number: int) -> Iterator[None]:
    """Let the loops of `parallel` run on no more than so many threads, those of this thread within the block.

    Args:
        number: At least 1.
    """
    if _forked():  # one thread, and numba must not be asked for others
        yield
        return
    before = numba.get_num_threads()
    numba.set_num_threads(min(number, before))
    try:
        yield
    finally:
        numba.set_num_threads(before)


def inner(function: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
    """Compile a function that only other loops call; the code that would take it from Python is left out.

    Such code, for each function and each of its types, was an eighth of the seconds of a first search.

    Args:
        function: The function. A call from Python, rather than from a compiled loop, ends the process.
        options: Further ones of `numba.njit`, as `@inner(fastmath=...)`.

    Returns:
        The compiled function, or without a function a decorator with the options.
    """
    if function is None:
        return functools.partial(inner, **options)
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)


def parallel(function: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
    """Compile a loop over `numba.prange` twice: for all threads, and for one thread in a forked process.

    Args:
        function: The loop, called from Python only. Each version is compiled at its first call and cached.
        options: Further ones of `numba.njit`, as `@parallel(fastmath=...)`.

    Returns:
        A function that runs the right version; its `__wrapped__` is the one for all threads. Without a loop,
        a decorator with the options.
    """
    if function is None:
        return functools.partial(parallel, **options)
    assert isinstance(function, FunctionType)
    on_threads = _compiled(function, parallel=True, **options)
    # The cache of numba tells functions apart by their names, and not by how they were compiled.
    copy = FunctionType(function.__code__, function.__globals__)
    copy.__qualname__ = f"{function.__qualname__}_on_one_thread"
    on_one_thread = _compiled(copy, **options)

    @functools.wraps(on_threads)
    def run(*arguments: Any) -> Any:
        if _forked():
            return on_one_thread(*arguments)
        _apply_limit()
        with _alone_if_needed():
            return on_threads(*arguments)

    return run


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile a function at its first call, and keep the result for later processes.

    Raises:
        PermissionError: If nothing can be written where the result would be kept.
    """
    chosen = numba.config.CACHE_DIR
    folder = _folder_of_this_version(chosen)
    numba.config.CACHE_DIR = folder  # is read here, and not at the first call
    try:
        compiled: Callable[..., Any] = numba.njit(function, cache=True, **options)
    except RuntimeError as error:  # here numba looks for a folder, and compiles nothing yet
        raise PermissionError(
            f"no file can be written in {folder}, where compiled loops are kept; the environment variable "
            "NUMBA_CACHE_DIR names another folder"
        ) from error
    finally:
        numba.config.CACHE_DIR = chosen
    return compiled


@functools.cache
def _folder_of_this_version(chosen: str) -> str:
    """Return the folder for what is compiled from these files by this numba.

    As with numba, it is beside the files if the user may write there, and else in the user's cache.

    Args:
        chosen: What NUMBA_CACHE_DIR says, or an empty text.
    """
    files = Path(__file__).parent
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(files.rglob("*.py")):
        digest.update(path.read_bytes())
    name = f"loops-{digest.hexdigest()[:16]}"
    if not chosen and os.access(files, os.W_OK):
        chosen = str(files / "__pycache__")
    return os.path.join(chosen, name) if chosen else str(cache_folder(name))


def _apply_limit() -> None:
    """Give the calling thread no more threads than `limit_threads` allows; numba counts for each thread."""
    if _most is not None and numba.get_num_threads() > _most:
        numba.set_num_threads(_most)


def _forked() -> bool:
    """Return whether this process was forked from the one that started the threads, which lacks them."""
    return _process_of_threads() != os.getpid()


@functools.cache
def _process_of_threads() -> int:
    """Start the threads of numba, and return the process that has them."""
    starter = threading.Thread(target=numba.get_num_threads)
    starter.start()
    starter.join()
    return os.getpid()


@functools.cache
def _alone_if_needed() -> AbstractContextManager[Any]:
    return _ONE_AT_A_TIME if numba.threading_layer() == "workqueue" else nullcontext()


if "NUMBA_NUM_THREADS" not in os.environ and os.environ.get("OMP_NUM_THREADS", "").isdecimal():
    _most = max(1, int(os.environ["OMP_NUM_THREADS"]))
