"""The processes of a run repeat themselves, take the cores that they may use, and no more."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lexforge.common import control_groups
from lexforge.runs import processes, start_processes
from lexforge.runs.processes import allowed_cores, take_cores, threads_were_set

SCRIPT = """
import sys, torch
if "searches" in sys.argv:
    from lexforge.kernels import parallel
    parallel.threads()
from lexforge.runs import start_processes
start_processes(0)
from lexforge.kernels import parallel
print(torch.get_num_threads(), parallel.threads())
"""
# Sets one thread, as `accelerate launch` and torchrun do where the user has set nothing.
LAUNCHER = """
import os, subprocess, sys
subprocess.run([sys.executable, *sys.argv[1:]], check=True, env={"OMP_NUM_THREADS": "1"} | os.environ)
"""


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"slice/job/cpu.max": "150000 100000\n", "cpu.max": "max 100000\n"}, 2),
        ({"slice/job/cpu.max": "max 100000\n", "slice/cpu.max": "20000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({}, None),
    ],
)
def test_the_quota_of_a_control_group_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], quota: int | None
) -> None:
    """A container or a job with two cores of 64 must not start 64 threads; both versions are read."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(control_groups, "ROOT", tmp_path)
    monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "membership")
    (tmp_path / "membership").write_text("0::/slice/job\n4:cpu,cpuacct:/slice/job\n3:memory:/other\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    assert allowed_cores() == (8 if quota is None else quota)


@pytest.mark.parametrize(
    ("environment", "command", "expected"),
    [
        ({}, ["accelerate", "launch", "recipe.py"], False),
        ({"OMP_NUM_THREADS": "1"}, ["accelerate", "launch", "recipe.py"], True),
        ({}, ["accelerate", "launch", "--num_cpu_threads_per_process", "1", "recipe.py"], True),
        ({}, ["accelerate", "launch", "--num-cpu-threads-per-process=4", "recipe.py"], True),
        ({"OMP_WAIT_POLICY": "passive"}, [], False),
    ],
)
def test_the_choice_of_the_user_is_known(
    environment: dict[str, str], command: list[str], expected: bool
) -> None:
    """By the variable that all OpenMP programs read, or by the launcher's option."""
    assert threads_were_set(environment, command) is expected


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process how its parent was started")
@pytest.mark.parametrize("before", ["", "searches"])
@pytest.mark.parametrize("chosen", [None, pytest.param("1", marks=pytest.mark.slow)])
def test_one_thread_that_a_launcher_has_set_is_not_the_users(
    tmp_path: Path, chosen: str | None, before: str
) -> None:
    """Without this, the documented command would use one core of any machine.

    Compiled loops take as many, also where the process has searched before it joins the others.
    """
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if not name.endswith("NUM_THREADS")}
    environment |= {} if chosen is None else {"OMP_NUM_THREADS": chosen}
    launcher = tmp_path / "torchrun"
    launcher.write_text(LAUNCHER)
    command = [sys.executable, str(launcher), str(script), before]
    told = subprocess.check_output(command, text=True, env=environment).split()
    assert told == [str(allowed_cores()) if chosen is None else "1"] * 2


@pytest.mark.parametrize("number", [1, 3, 9])
def test_the_processes_of_a_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Each with all of them would start as many threads as there are cores, times the processes."""
    taken: list[int] = []
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(processes, "allowed_cores", lambda: 8)
    monkeypatch.setattr(processes.torch, "set_num_threads", taken.append)
    monkeypatch.delitem(sys.modules, "numba", raising=False)  # its threads stay as they are
    take_cores(number)
    assert taken == [max(1, 8 // number)]


def test_the_seed_makes_every_generator_repeat_itself() -> None:
    """Two runs with one seed start from the same weights, whichever library draws them."""
    drawn = []
    for _ in range(2):
        state = start_processes(7)
        legacy = np.random.rand()  # noqa: NPY002 - the generator that set_seed seeds
        drawn.append((random.random(), legacy, torch.rand(1).item()))
    assert drawn[0] == drawn[1]
    assert state.is_main_process
    assert state.num_processes == 1
