"""The first steps of every recipe: join the other processes, check and claim the run directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import set_seed

from lexforge.common.ranks import from_first_rank
from lexforge.runs.processes import join_processes
from lexforge.runs.run_directory import check_run, open_run


def start_processes(seed: int) -> PartialState:
    """Join the processes of a run and give each of them the same seed.

    Args:
        seed: Seed of the random generators of Python, NumPy and torch.

    Returns:
        This process among those of the run.
    """
    process = join_processes()
    set_seed(seed)
    return process


def check_run_directory(folder: str | Path, config: Any, *, resume: bool) -> None:
    """Check on the first rank that `claim_run_directory` will accept the folder, before any work.

    Args:
        folder: The run directory.
        config: The settings of the run, a dataclass with a field `resume`.
        resume: Whether to continue the run that the folder holds.

    Raises:
        BlockingIOError: If another process is writing in the folder. This error and the others are raised on
            all ranks.
        FileExistsError: If the folder holds another run or other files, and `resume` is False.
        FileNotFoundError: If `resume` is True and the folder holds no run.
        ValueError: If `resume` is True and a setting differs from that of the run in the folder.
    """
    from_first_rank(lambda: check_run(folder, asdict(replace(config, resume=False)), resume=resume))


def claim_run_directory(
    folder: str | Path, config: Any, *, resume: bool, data: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Open the run directory on the first rank while the other ranks wait; no other run can open it then.

    Args:
        folder: The run directory.
        config: The settings of the run, a dataclass with a field `resume`. `config.json` records them with
            `resume` set to False, because a resumed run has the settings of the run that it continues.
        resume: Whether to continue the run that the folder holds.
        data: The digests of the data, as for `open_run`.

    Raises:
        BlockingIOError: If another process is writing in the folder. This error and the others are raised on
            all ranks.
        FileExistsError: If the folder holds another run or other files, and `resume` is False.
        FileNotFoundError: If `resume` is True and the folder holds no run.
        ValueError: If `resume` is True and a setting or the data differ from those of the run in the folder.
    """
    settings = asdict(replace(config, resume=False))
    from_first_rank(lambda: open_run(folder, settings, resume=resume, data=data))
