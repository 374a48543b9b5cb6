"""The folder of a run, with its settings and its environment."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lexforge.common.processor import processor_name
from lexforge.common.ranks import from_first_rank
from lexforge.runs.checkpoint_folders import UNFINISHED
from lexforge.runs.launcher import launch_command
from lexforge.runs.log_file import LOG_FILE
from lexforge.settings import BACKBONE
from lexforge.storage.files import check_can_be_made, finished_name, remove_leftovers, write_file
from lexforge.storage.lock import LOCK_FILE, hold_for_life

RECORDS = {"config.json", "env.json", LOCK_FILE}
# What a run leaves beside its records before its first checkpoint: its log, what it measured, the encoder
# that it built, the negatives that it mined, and what it had written of that checkpoint.
BEGINNINGS = {
    LOG_FILE,
    "bm25.trec",
    "bm25.scores.json",
    "initial.trec",
    "initial.scores.json",
    "initial_sample.trec",
    "initial_sample.scores.json",
    "eval",
    BACKBONE,
    "mined.jsonl",
    UNFINISHED,
}
PACKAGES = (
    "lexforge",
    "torch",
    "transformers",
    "sentence-transformers",
    "accelerate",
    "datasets",
    "numpy",
    "numba",
)


def check_run_directory(folder: str | Path, config: Any) -> None:
    """Check that `claim_run_directory` would claim a folder, and lock one in which a run was opened before.

    Nothing but the name of this process in the lock file is written. The first rank does it for all.

    Args:
        folder: The folder, as for `claim_run_directory`.
        config: The settings of the run, a dataclass whose field `resume` says whether to continue the run
            that the folder holds.

    Raises:
        BlockingIOError: If another process has opened the folder and has not ended. This error and the others
            are raised on all ranks.
        FileExistsError: If the folder is a file, or if it holds anything else than records and what a run
            writes before its first checkpoint, and the run is not resumed.
        OSError: If the folder cannot be made.
        FileNotFoundError: If the run is resumed and the folder holds none.
        ValueError: If the run is resumed and a setting differs.
    """
    from_first_rank(lambda: _check(Path(folder), _settings(config), config.resume))


def claim_run_directory(folder: str | Path, config: Any, *, data: Mapping[str, Mapping[str, Any]]) -> None:
    """Claim a folder for a run and write `config.json` and `env.json` into it, on the first rank for all.

    The folder stays locked until this process ends (`lexforge.storage.lock`).

    Args:
        folder: The folder, which is created if it is missing. It must be empty, or hold only the records of
            a run that failed before its first checkpoint, of which nothing else is kept.
        config: The settings of the run, a dataclass; values without a JSON type are written as strings. Its
            field `resume` says whether to continue the run that the folder holds, whose other settings must
            be the same, but for the one that names the folder; `config.json` records it as False.
        data: Name -> `count` and `digest` of each part of the data, as `lexforge.data.digests` returns them;
            `env.json` keeps them, and those of a resumed run must be the same.

    Raises:
        BlockingIOError: If another process has opened the folder and has not ended. This error and the others
            are raised on all ranks.
        FileExistsError: If the folder holds anything else and no run is resumed; nothing is changed then.
        FileNotFoundError: If the run is resumed and the folder holds none.
        ValueError: If the run is resumed and a setting or a part of the data differs.
    """
    from_first_rank(lambda: _claim(Path(folder), _settings(config), config.resume, data))


def _settings(config: Any) -> dict[str, Any]:
    """The settings in JSON types, as `config.json` holds them."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(replace(config, resume=False)), default=str))
    return found


def _check(folder: Path, settings: Mapping[str, Any], resume: bool) -> None:
    if (folder / LOCK_FILE).is_file():
        hold_for_life(folder)
    if resume:
        before = read_json(folder / "config.json")
        if before is None:
            raise FileNotFoundError(f"nothing to resume: {folder / 'config.json'} does not exist")
        then, now = flat_settings(before), flat_settings(settings)
        # The setting that names the folder may spell it otherwise, also because the folder was moved.
        names = [name for name in sorted({*then, *now}) if now.get(name) != str(folder)]
        changed = [name for name in names if then.get(name) != now.get(name)]
        if changed:
            differences = (f"{name} was {then.get(name)!r} and is now {now.get(name)!r}" for name in changed)
            model = folder / "model"
            first = "" if model.is_dir() else "resume it without this change to its end, then "
            raise ValueError(
                f"cannot resume {folder}: {'; '.join(differences)}. A resumed run ends as if it had never "
                f"been stopped, so its settings stay, also the number of its steps. To train further, {first}"
                f"give its model to a new run in another directory: --model {shlex.quote(str(model))}"
            )
    elif folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file, and a run is a folder; choose another output directory")
    elif folder.is_symlink() and not folder.exists():
        raise FileExistsError(
            f"{folder} is a link to {folder.readlink()}, which does not exist; make that folder, or choose "
            "another output directory"
        )
    elif not folder.exists():
        check_can_be_made(folder)
    elif not _is_beginning(folder):
        raise FileExistsError(
            f"{folder} already holds another run or other files; choose another output directory, "
            "or resume the run that it holds"
        )


def _claim(
    folder: Path, settings: Mapping[str, Any], resume: bool, data: Mapping[str, Mapping[str, Any]]
) -> None:
    _check(folder, settings, resume)
    folder.mkdir(parents=True, exist_ok=True)
    hold_for_life(folder)
    if not resume:
        for name in BEGINNINGS:
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
        # The settings go first and come last, so that none are there without the record of their data.
        (folder / "config.json").unlink(missing_ok=True)
        write_json(folder / "env.json", environment() | {"data": data})
        write_json(folder / "config.json", settings)
    elif differences := changed_data(recorded_data(folder), data):
        raise ValueError(
            f"cannot resume {folder}: the data are not those that the run began with: "
            f"{'; '.join(differences)}. Bring them back, or begin a new run in another directory"
        )


def recorded_data(folder: Path) -> dict[str, dict[str, Any]]:
    """Return count and digest of each part of the data of a run, as its `env.json` holds them."""
    found: dict[str, dict[str, Any]] = (read_json(folder / "env.json") or {}).get("data", {})
    return found


def changed_data(before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say which parts of the data of a run have changed, a phrase for each.

    Args:
        before: What the run recorded, as `lexforge.data.digests` returns it. A part that its version did not
            record tells nothing; only a run without any record has lost them all.
        now: The same of the data as they are.
    """
    changed = [name for name in before or now if before.get(name) != now.get(name)]
    return [f"{name}: {_amount(before, name)}, now {_amount(now, name)}" for name in changed]


def _amount(data: Mapping[str, Mapping[str, Any]], name: str) -> str:
    return f"{data[name]['count']} (digest {data[name]['digest'][:8]})" if name in data else "missing"


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one mapping, with names such as `loss.temperature`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= flat_settings(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def environment() -> dict[str, Any]:
    """The versions of the packages, the machine and the command of this process."""
    import torch

    from lexforge.kernels.splade_head.choice import head_record

    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "command": launch_command(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "processor": processor_name(),
        "splade_head": head_record(),
        "ranks": int(os.environ.get("WORLD_SIZE", "1")),
        "versions": versions,
    }


def complete_environment(folder: Path) -> None:
    """Add to `env.json` what the head was timed at, which a new machine knows only after the first batch.

    Args:
        folder: The output folder of a training; nothing happens if it is no run directory.
    """
    from lexforge.kernels.splade_head.choice import head_record

    if (recorded := read_json(folder / "env.json")) is not None:
        write_json(folder / "env.json", recorded | {"splade_head": head_record()})


def resume_command(checkpoint: Path) -> str:
    """The command that resumes a run from its last checkpoint.

    Args:
        checkpoint: A checkpoint of the run.

    Returns:
        The command that `claim_run_directory` recorded, followed by `--resume`, and by the
        folder if the run was moved or copied since; without such a record the call of `train` in Python.
    """
    folder = checkpoint.parent
    run = read_json(folder / "env.json")
    if run is None:
        return f"trainer.train(resume_from_checkpoint={str(checkpoint)!r})"
    settings = read_json(folder / "config.json") or {}
    moved: list[str] = []
    for name in ("output_dir", "output"):  # of a recipe, and of `lexforge adapt`
        if name in settings and Path(settings[name]).resolve() != folder.resolve():
            moved = [f"--{name.replace('_', '-')}", str(folder)]  # the last one counts
    return shlex.join([*run["command"], "--resume", *moved])


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON file of a run.

    Args:
        path: The file.

    Returns:
        Its content, or None if there is no such file.

    Raises:
        ValueError: If the file holds anything else than a JSON object.
    """
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged; it is not the JSON that a run writes: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object; received {type(content).__name__}")
    return content


def write_json(path: Path, content: Any) -> None:
    """Write JSON so that a killed process leaves the old file or the new one.

    Args:
        path: The file, of which one process of a run is the only writer: what an earlier one left half
            written is removed.
        content: Anything in JSON types.
    """
    remove_leftovers(path.parent, re.escape(path.name))
    write_file(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def _is_beginning(folder: Path) -> bool:
    """Whether a folder is empty, or holds only what a run leaves that failed before its first checkpoint."""
    names = {finished_name(path.name) for path in folder.iterdir()}  # also of what a killed process left
    # Without the records of a run beside them, such files are somebody's own.
    return names <= RECORDS | BEGINNINGS if {"config.json", "env.json"} <= names else names <= RECORDS
