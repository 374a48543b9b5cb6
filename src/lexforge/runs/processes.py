"""The processes of a run: how they find one another at its start, and part at its end."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from accelerate import PartialState
from transformers import set_seed

from lexforge.runs.launcher import launcher_command, launchers_environment
from lexforge.runs.rank_watch import RankWatch
from lexforge.runs.threads import take_cores, threads_were_set

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
