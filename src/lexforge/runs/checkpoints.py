"""Checkpoints on disk: written beside their place, sealed by a manifest of every file, renamed when whole.

A checkpoint is the folder `checkpoint-<step>` of a run. While it is written it lies under `unfinished/`; it
gets its name when every file is on the disk and named in its manifest. So a process that is killed at
any moment leaves checkpoints that are whole and an `unfinished/` that nobody reads.
"""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path

from lexforge.common import files
from lexforge.common.manifest import MANIFEST, read_manifest, write_manifest

FORMAT = "lexforge-checkpoint"
UNFINISHED = "unfinished"
ABANDONED = "abandoned"
DISK_IS_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NO_ROOM = 2**16  # bytes: what is left of a full disk
logger = logging.getLogger(__name__)


class DamagedCheckpointError(ValueError):
    """A checkpoint that was not written to the end, or whose files have changed since."""


class DiskFullError(OSError):
    """A checkpoint did not fit on the disk; nothing of it was left, and earlier ones are as they were."""


def seal(folder: Path) -> None:
    """Bring every file of a folder to the disk and write the manifest with their sizes and SHA-256.

    Args:
        folder: Holds a complete checkpoint.
    """
    write_manifest(folder, FORMAT, {}, durable=True)


def check_seal(folder: str | Path) -> None:
    """Check every file of a checkpoint against its manifest.

    Args:
        folder: A checkpoint.

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


def publish(staged: Path, place: Path) -> None:
    """Seal a checkpoint and move it to its place, in one step that happens or does not.

    Args:
        staged: The checkpoint, under `unfinished/` of the same run.
        place: Where it belongs. What lies there, of an earlier and abandoned run of the same steps, goes.
    """
    seal(staged)
    if place.exists():
        place.replace(staged.with_name(f"replaced-{place.name}"))
    files.publish(staged, place, durable=True)
    remove_unfinished(place.parent)


def set_aside_after(place: Path) -> None:
    """Move the checkpoints of later steps, which belong to a run that was given up, out of sight.

    They would count as newer than what is written now: `last_checkpoint` would go on from them, and `rotate`
    would keep them and delete the run's own.

    Args:
        place: Where the next checkpoint of the run will lie; later ones of its folder go to `abandoned/`,
            over those of the same step there.
    """
    aside = place.parent / ABANDONED
    later = [path for path in by_step(place.parent) if _step(path) > _step(place)]
    for checkpoint in later:
        aside.mkdir(exist_ok=True)
        shutil.rmtree(aside / checkpoint.name, ignore_errors=True)
        checkpoint.replace(aside / checkpoint.name)
    if later:
        names = ", ".join(path.name for path in later)
        logger.warning("the run goes on from an earlier step than %s: moved to %s", names, aside)


def remove_unfinished(run: Path) -> None:
    """Remove what an interrupted save, replacement or rotation left."""
    if (run / UNFINISHED).exists():
        shutil.rmtree(run / UNFINISHED)


def rotate(run: Path, keep: int | None, best: str | None) -> None:
    """Remove all but the newest checkpoints of a run.

    Args:
        run: The run's folder.
        keep: Checkpoints to keep; None or 0 keeps all.
        best: A checkpoint that is kept in any case.
    """
    if not keep:
        return
    for checkpoint in by_step(run)[:-keep]:
        if best is None or checkpoint.resolve() != Path(best).resolve():
            (run / UNFINISHED).mkdir(exist_ok=True)  # first out of sight: half a checkpoint is none
            checkpoint.replace(run / UNFINISHED / checkpoint.name)
    remove_unfinished(run)


def by_step(run: str | Path) -> list[Path]:
    """The folders `checkpoint-<step>` of a run, whole or not, earliest step first."""
    found = [path for path in Path(run).glob("checkpoint-*") if path.name.split("-", 1)[1].isdecimal()]
    return sorted(found, key=_step)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.split("-", 1)[1])


def last_checkpoint(run: str | Path) -> str | None:
    """The newest checkpoint of a run that is whole; each newer one is named in a warning, with the reason.

    Args:
        run: The run's folder.

    Returns:
        Its path, or None.
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
    """What to tell the user if a checkpoint does not fit on the disk of a run.

    Args:
        run: The run's folder.
        needed: Bytes of the checkpoint, at least.
        written: Bytes of it that are on the disk already.
        cause: What went wrong, if something did.

    Returns:
        A sentence with the missing bytes, or None if the checkpoint fits and the cause is another one.
    """
    free = shutil.disk_usage(run).free
    available = free + written
    full = isinstance(cause, OSError) and cause.errno in DISK_IS_FULL
    full |= cause is not None and free < NO_ROOM  # torch and safetensors raise errors of their own
    if needed <= available and not full:
        return None
    # A quota or a limit of the process can be reached with the disk still free: then the rest is missing.
    missing = max(needed - (available if needed > available else written), NO_ROOM)
    return (
        f"a checkpoint of at least {_mebibytes(needed)} does not fit into {run}: {_mebibytes(missing)} are "
        f"missing. Nothing of it was kept; the last whole checkpoint is {last_checkpoint(run)}"
    )


def size_of(folder: Path) -> int:
    """Bytes of all files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _mebibytes(size: int) -> str:
    return f"{max(size, 0) / 2**20:.1f} MiB"
