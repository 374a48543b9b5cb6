"""How many threads a run takes: the cores that it may use, divided by its processes on this machine.

Launchers set `OMP_NUM_THREADS` to 1 where the user has set nothing, so that a run on processors would leave
all cores but one idle. What the user set can be told from what the launcher set by the launcher's own
environment and command.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from lexforge.common.control_groups import control_groups

VARIABLE = "OMP_NUM_THREADS"
FLAG = "--num_cpu_threads_per_process"  # of `accelerate launch`, also with dashes


def allowed_cores() -> int:
    """Return how many cores this process may use: its affinity, and the quotas of its control groups if any.

    Returns:
        The number of cores, at least 1; a quota of a part of a core is rounded up.
    """
    linux = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if linux else os.cpu_count() or 1
    quotas = [quota for group in control_groups("cpu") if (quota := _quota(*group)) is not None]
    return max(1, min([cores, *map(math.ceil, quotas)]))


def _quota(group: Path, is_second: bool) -> float | None:
    """The cores that a control group may use at once; None if there is no limit or it cannot be read."""
    names = ("cpu.max",) if is_second else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    try:  # version 2: "max 100000" or "150000 100000"; version 1: -1 is no limit
        quota, period = " ".join((group / name).read_text() for name in names).split()
    except (OSError, ValueError):
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def threads_were_set(environment: Mapping[str, str], command: Sequence[str]) -> bool:
    """Return whether the user has chosen the number of threads.

    Args:
        environment: The variables that the user's command was started with.
        command: The words of that command, a launcher's or Python's own.
    """
    names = {word.split("=", 1)[0].replace("-", "_") for word in command}
    return VARIABLE in environment or FLAG.replace("-", "_") in names


def take_cores(local_processes: int) -> None:
    """Let torch and the compiled searches use this process's share of the cores.

    Args:
        local_processes: Number of processes of the run on this machine.
    """
    threads = max(1, allowed_cores() // local_processes)
    torch.set_num_threads(threads)
    if "numba" in sys.modules:
        from lexforge.kernels.parallel import limit_threads

        limit_threads(threads)
    else:  # numba reads the variable when it is imported, which a process that does not search never does
        os.environ.setdefault("NUMBA_NUM_THREADS", str(threads))
