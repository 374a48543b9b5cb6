"""How a run was launched: its processes and the command that started them."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import PartialState

from lexforge.runs.rank_watch import RankWatch
from lexforge.runs.threads import take_cores, threads_were_set

# How long the ranks wait while one of them encodes or evaluates; the default of NCCL is 10 minutes.
ALONE = timedelta(hours=12)
PR_SET_PDEATHSIG = 1
_watches: list[RankWatch] = []  # that of this rank, from `join_processes` to `leave_processes`
# What starts the ranks of a run, by the first words of the program that Python runs.
LAUNCHERS = (
    ["torchrun"],
    ["torch.distributed.run"],
    ["torch.distributed.launch"],
    ["accelerate", "launch"],
    ["accelerate-launch"],
    ["accelerate.commands.launch"],
    ["accelerate.commands.accelerate_cli", "launch"],
)
MASK = "***"
_NAME = re.compile(r"([\w.-]+)=")
_SECRET = re.compile(r"(?<![a-z])(token|(api)?key|secret|password)(?![a-z])", re.IGNORECASE)


def join_processes(silent_s: float = 60.0) -> PartialState:
    """Join the processes of a run; a script for `accelerate launch` or `torchrun` calls this first.

    The ranks wait for one another for up to twelve hours, and the log names a rank that gives no sign of life
    for a minute. On Linux the process receives a SIGTERM when its
    launcher dies, because `accelerate launch` with one process passes no SIGTERM on and would leave the run
    behind. The process takes its share of the cores, unless the user has set a number of threads by
    `OMP_NUM_THREADS` or `accelerate launch --num_cpu_threads_per_process`.

    Args:
        silent_s: Seconds without a sign of life after which the log names a rank.

    Returns:
        The state of accelerate, which knows the rank of this process and the number of ranks.
    """
    launcher = _launcher()
    if launcher:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if not threads_were_set(_launchers_environment() if launcher else os.environ, launcher):
        take_cores(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    process = PartialState(cpu=not torch.accelerator.is_available(), timeout=ALONE)
    if process.num_processes > 1 and not _watches:
        _watches.append(
            RankWatch(process.process_index, process.num_processes, silent_s=silent_s, timeout=ALONE)
        )
        _watches[0].start()
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


def launch_command() -> list[str]:
    """The command that started this run: that of the launcher if there is one, or else that of the process.

    It is read from the words that started Python, not from `sys.argv`: those keep `-m lexforge`, and a
    command that runs a recipe changes `sys.argv`.

    Returns:
        The words of the command. The value of what is named token, key, secret or password is `***`, because
        the command is kept in files that are shown to others.
    """
    return _masked(_launcher() or [sys.executable, *sys.orig_argv[1:]])


def _masked(words: list[str]) -> list[str]:
    """The words without the values of secrets, as in `--hub-token VALUE` and `--export=HF_TOKEN=VALUE`."""
    masked: list[str] = []
    for word in words:
        before = masked[-1] if masked else ""
        named = next((name for name in _NAME.finditer(word) if _SECRET.search(name[1])), None)
        option = before.startswith("-") and "=" not in before
        if option and _SECRET.search(before) and not word.startswith("-"):
            masked.append(MASK)
        else:
            masked.append(word if named is None else word[: named.end()] + MASK)
    return masked


def _launcher() -> list[str]:
    """The command of the parent process if it is a launcher of this program; known on Linux only."""
    try:
        command = os.fsdecode(Path(f"/proc/{os.getppid()}/cmdline").read_bytes()).split("\0")[:-1]
    except OSError:
        return []
    own, parents = program_words(sys.orig_argv), program_words(command)
    names = [Path(word).name for word in parents[:1]] + parents[1:]
    known = any(names[: len(launcher)] == launcher for launcher in LAUNCHERS)
    return command if known and own and command[-len(own) :] == own else []


def program_words(words: list[str]) -> list[str]:
    """What a command of Python runs: a file, a module or code, and its arguments; options are left out."""
    place = 1
    while place < len(words) and words[place].startswith("-"):
        option = words[place]
        place += 2 if option in ("-W", "-X", "-m", "-c") else 1
        if option in ("-m", "-c"):
            return words[place - 1 :]
    return words[place:]


def _launchers_environment() -> dict[str, str]:
    """The variables that the parent process was started with; known on Linux only."""
    words = os.fsdecode(Path(f"/proc/{os.getppid()}/environ").read_bytes()).split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)
