"""The processes of a run: how they find one another at its start, share the cores, and part at its end.

Launchers set `OMP_NUM_THREADS` to 1 where the user has set nothing, so that a run on processors would leave
all cores but one idle. What the user set can be told from what the launcher set by the launcher's own
environment and command.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from accelerate import PartialState
from transformers import set_seed

from lexforge.common.control_groups import control_groups
from lexforge.runs.launcher import launcher_command, launchers_environment
from lexforge.runs.rank_watch import RankWatch

THREADS = "OMP_NUM_THREADS"
FLAG = "num_cpu_threads_per_process"  # of `accelerate launch`, also with dashes
# How long the ranks wait while one of them encodes or evaluates; the default of NCCL is 10 minutes.
ALONE = timedelta(hours=12)
SILENT_S = 60.0  # without a sign of life for so long, the log names a rank
PR_SET_PDEATHSIG = 1
_watches: list[RankWatch] = []  # that of this rank, from `start_processes` to `leave_processes`


def start_processes(seed: int) -> PartialState:
    """Join the processes of a run and give each of them the same seed.

    A script for `accelerate launch` or `torchrun` calls this first. The ranks wait for one another for up to
    twelve hours, and the log names a rank that gives no sign of life for a minute. On Linux the process
    receives a SIGTERM when its launcher dies, because `accelerate launch` with one process passes no SIGTERM
    on and would leave the run behind. The process takes its share of the cores, unless the user has set a
    number of threads by `OMP_NUM_THREADS` or `accelerate launch --num_cpu_threads_per_process`.

    Args:
        seed: Seed of the random generators of Python, NumPy and torch.

    Returns:
        The state of accelerate, which knows the rank of this process and the number of ranks.
    """
    launcher = launcher_command()
    if launcher:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if not threads_were_set(launchers_environment() if launcher else os.environ, launcher):
        take_cores(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    process = PartialState(cpu=not torch.accelerator.is_available(), timeout=ALONE)
    if process.num_processes > 1 and not _watches:
        _watches.append(
            RankWatch(process.process_index, process.num_processes, silent_s=SILENT_S, timeout=ALONE)
        )
        _watches[0].start()
    set_seed(seed)
    return process


def leave_processes() -> None:
    """Leave the processes of a run; a script calls this last, when it no longer uses its model.

    A model that was wrapped for several ranks holds the process group, and with it the threads of gloo, until
    it is collected as garbage. Such a thread can abort a process that ends, and then the launcher stops the
    other ranks (https://github.com/pytorch/pytorch/pull/179291). A script that ends with an error must not
    call this, because the threads may wait for a rank that never answers.
    """
    while _watches:
        _watches.pop().leave()
    if dist.is_available() and dist.is_initialized():
        gc.collect()
        dist.destroy_process_group()


def allowed_cores() -> int:
    """Return how many cores this process may use: its affinity, and the quotas of its control groups if any.

    Returns:
        The number of cores, at least 1; a quota of a part of a core is rounded up.
    """
    cores = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    for texts in control_groups("cpu", ["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        quota, period = " ".join(texts).split()  # such as "150000 100000"
        if quota not in ("max", "-1"):  # no limit in version 2 and 1
            cores.append(math.ceil(int(quota) / int(period)))
    return max(1, min(cores))


def threads_were_set(environment: Mapping[str, str], command: Sequence[str]) -> bool:
    """Return whether the user has chosen the number of threads.

    Args:
        environment: The variables that the user's command was started with.
        command: The words of that command, a launcher's or Python's own.
    """
    names = {word.split("=", 1)[0].lstrip("-").replace("-", "_") for word in command}
    return THREADS in environment or FLAG in names


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
