"""How a run was launched: its processes, the command that started them, and the launcher's end."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import PartialState

ALONE = timedelta(hours=12)  # for which ranks wait while one encodes or evaluates; NCCL's own is 10 minutes
PR_SET_PDEATHSIG = 1


def join_processes() -> PartialState:
    """Join the processes of a run; to be called first in a script for `accelerate launch` or `torchrun`.

    Ranks wait for one another for up to twelve hours. On Linux the process gets a SIGTERM when its launcher
    dies: `accelerate launch` of one process passes no SIGTERM on, and would leave a run that nobody knows of.

    Returns:
        This process among those of the run.
    """
    if _launcher():
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    return PartialState(cpu=not torch.accelerator.is_available(), timeout=ALONE)


def launch_command() -> list[str]:
    """The command that started this run: the launcher's where there is one, else the script's.

    Returns:
        Its words.
    """
    return _launcher() or [sys.executable, *sys.argv]


def _launcher() -> list[str]:
    """The command of the parent, if it ends in this script and its arguments; only Linux tells it."""
    try:
        command = os.fsdecode(Path(f"/proc/{os.getppid()}/cmdline").read_bytes()).split("\0")[:-1]
    except OSError:
        return []
    return command if command[-len(sys.argv) :] == sys.argv else []
