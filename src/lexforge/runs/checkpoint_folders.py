"""Checkpoints on disk: written beside their place, sealed by a manifest of every file, renamed when whole.

A checkpoint is the folder `checkpoint-<step>` of a run. While it is written, it lies under `unfinished/`. It
gets its name when every file is on the disk and named in its manifest. So a process that is killed at any
moment leaves checkpoints that are whole, and perhaps a folder `unfinished/` that nothing reads.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lexforge.common.numbers import byte_size
from lexforge.storage import files
from lexforge.storage.manifest import MANIFEST, read_manifest, write_manifest

FORMAT = "lexforge-checkpoint"
UNFINISHED = "unfinished"
ABANDONED = "abandoned"
NO_ROOM = 2**16  # bytes; a disk with less free space than this is full
logger = logging.getLogger(__name__)


class DamagedCheckpointError(ValueError):
    """A checkpoint was not written to the end, or its files have changed since."""


class DiskFullError(OSError):
    """A checkpoint did not fit on the disk; nothing of it is left, and earlier ones are unchanged."""


def seal(folder: Path) -> None:
    """Bring every file of a folder to the disk and write the manifest with their sizes and SHA-256.

    Args:
        folder: The folder of a checkpoint whose files are all written.
    """
    write_manifest(folder, FORMAT, {}, durable=True)


def check_seal(folder: str | Path) -> None:
    """Check every file of a checkpoint against its manifest.

    Args:
        folder: The folder of a checkpoint.

    Raises:
        FileNotFoundError: If the folder does not exist.
        DamagedCheckpointError: If it has no manifest, or a file is missing, was added, cut or altered.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"no checkpoint at {folder}")
    if not (folder / MANIFEST).is_file():
        raise DamagedCheckpointError(
            f"{folder} has no {MANIFEST}: it was not written to the end, or not by this version of lexforge"
        )
    try:
        read_manifest(folder, FORMAT)
    except (ValueError, FileNotFoundError) as error:
        raise DamagedCheckpointError(f"{folder} is not whole: {error}") from error


@contextmanager
def new_checkpoint(
    staged: Path, place: Path, *, size: int, writes: bool, wait: Callable[[], None]
) -> Iterator[None]:
    """A block that writes a checkpoint; when it ends without an error, the checkpoint is sealed and moved.

    All ranks must enter the block together. If it fails, nothing of the checkpoint is left.

    Args:
        staged: The folder into which the block writes, under `unfinished/` of the same run.
        place: The folder that the checkpoint becomes.
        size: The number of bytes that the checkpoint needs at least.
        writes: Whether this rank writes files; one rank per folder does.
        wait: Waits until all ranks have called it.

    Raises:
        DiskFullError: If the checkpoint does not fit on the disk; found before the block begins or within it.
    """
    run = place.parent
    unfinished = run / UNFINISHED
    if writes:
        run.mkdir(parents=True, exist_ok=True)
        remove_unfinished(run)
        if message := disk_full(run, size):
            raise DiskFullError(message)
    wait()  # no rank writes before what an earlier run left unfinished has been removed
    try:
        yield
        wait()  # every rank has written its files
        if writes:
            set_aside_after(place)
            publish_checkpoint(staged, place)
    except Exception as error:  # the writers of a full disk raise OSError, RuntimeError, SafetensorError
        written = sum(path.stat().st_size for path in unfinished.rglob("*") if path.is_file())
        message = disk_full(run, size, written, error)
        shutil.rmtree(unfinished, ignore_errors=True)
        if message:
            raise DiskFullError(message) from error
        raise
    wait()  # every rank finds the checkpoint in its place


def publish_checkpoint(staged: Path, place: Path) -> None:
    """Seal a checkpoint and move it to its place by renaming, so that it appears there whole.

    Args:
        staged: The checkpoint, under `unfinished/` of the same run.
        place: The folder that it becomes. A checkpoint of an abandoned run that lies there is removed.
    """
    seal(staged)
    if place.exists():
        place.replace(staged.with_name(f"replaced-{place.name}"))
    files.publish(staged, place, durable=True)
    remove_unfinished(place.parent)


def set_aside_after(place: Path) -> None:
    """Move the checkpoints of later steps, which belong to an abandoned run, to `abandoned/`.

    Otherwise they would count as newer than what is written now: `last_checkpoint` would return them, and
    `rotate` would keep them and delete the run's own.

    Args:
        place: The folder of the checkpoint that is written next. A checkpoint of the same step that lies in
            `abandoned/` already is replaced.
    """
    aside = place.parent / ABANDONED
    later = [path for path in by_step(place.parent) if step_of(path) > step_of(place)]
    for checkpoint in later:
        aside.mkdir(exist_ok=True)
        shutil.rmtree(aside / checkpoint.name, ignore_errors=True)
        checkpoint.replace(aside / checkpoint.name)
    if later:
        names = ", ".join(path.name for path in later)
        logger.warning("the run goes on from an earlier step than %s: moved to %s", names, aside)


def remove_unfinished(run: Path) -> None:
    """Remove the files that an interrupted save, replacement or rotation has left."""
    if (run / UNFINISHED).exists():
        shutil.rmtree(run / UNFINISHED)


def rotate(run: Path, keep: int | None, best: str | None) -> None:
    """Remove all but the newest checkpoints of a run.

    Args:
        run: The run's folder.
        keep: The number of checkpoints to keep; None or 0 keeps all.
        best: The path of a checkpoint that is kept in any case, or None.
    """
    if not keep:
        return
    for checkpoint in by_step(run)[:-keep]:
        if best is None or checkpoint.resolve() != Path(best).resolve():
            (run / UNFINISHED).mkdir(exist_ok=True)  # a half-removed checkpoint must not look like one
            checkpoint.replace(run / UNFINISHED / checkpoint.name)
    remove_unfinished(run)


def by_step(run: str | Path) -> list[Path]:
    """The folders `checkpoint-<step>` of a run, whole or not, sorted by step."""
    found = [path for path in Path(run).glob("checkpoint-*") if path.name.split("-", 1)[1].isdecimal()]
    return sorted(found, key=step_of)


def step_of(checkpoint: str | Path) -> int:
    """Return the step of a checkpoint from the name of its folder, `checkpoint-<step>`."""
    return int(Path(checkpoint).name.split("-", 1)[1])


def last_checkpoint(run: str | Path) -> str | None:
    """The newest checkpoint of a run that is whole; a warning names each newer one and what is wrong with it.

    Args:
        run: The run's folder.

    Returns:
        The path of the checkpoint, or None if no checkpoint is whole.
    """
    for checkpoint in reversed(by_step(run)):
        try:
            check_seal(checkpoint)
        except DamagedCheckpointError as error:
            logger.warning("skipped a checkpoint: %s", error)
        else:
            return str(checkpoint)
    return None


def disk_full(run: Path, needed: int, written: int = 0, cause: BaseException | None = None) -> str | None:
    """The message for a checkpoint that does not fit on the disk of a run.

    Args:
        run: The run's folder.
        needed: The number of bytes that the checkpoint has at least.
        written: The number of its bytes that are on the disk already.
        cause: The error that stopped the writing, or None if nothing was written yet.

    Returns:
        A message with the number of missing bytes, or None if the checkpoint fits and the error has another
        cause.
    """
    free = shutil.disk_usage(run).free
    available = free + written
    full = isinstance(cause, OSError) and cause.errno in files.DISK_IS_FULL
    full |= cause is not None and free < NO_ROOM  # torch and safetensors raise errors of their own
    if needed <= available and not full:
        return None
    # A quota or a limit of the process can be reached while the disk has room; then the rest is missing.
    missing = max(needed - (available if needed > available else written), NO_ROOM)
    return (
        f"a checkpoint of at least {byte_size(needed)} does not fit into {run}: {byte_size(missing)} are "
        f"missing. Nothing of it is kept; the last whole checkpoint is {last_checkpoint(run)}"
    )
