"""How a run was launched."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import make_dataclass
from pathlib import Path

import pytest
from warm_processes import WarmProcesses

from lexforge.report import write_page
from lexforge.runs import claim_run_directory
from lexforge.runs.launcher import launch_command, program_words

SCRIPT = """
import json, sys
from lexforge.runs.launcher import launch_command
sys.argv = ["lexforge train", "--changed"]  # as a command does that runs a recipe
print(json.dumps(launch_command()))
"""
# Starts the program in its arguments, as launchers do, and waits.
LAUNCHER = """
import subprocess, sys
place = next(place for place, word in enumerate(sys.argv) if word.endswith("script.py") or word == "-m")
subprocess.run([sys.executable, *sys.argv[place:]], check=True)
"""

# Trains on a group of one rank, leaves it, and prints the names of its threads before and after.
LEAVING = """
import glob, json, sys
import sentence_transformers  # without what it imports, PyTorch itself keeps the group
import torch
from lexforge.runs import leave_processes

def threads():
    return [open(file).read().strip() for file in glob.glob("/proc/self/task/*/comm")]

def train():
    store = f"file://{sys.argv[1]}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    model.trainer = [model]  # as a trainer and its model hold each other

train()
before = threads()
leave_processes()
print(json.dumps([before, threads()]))
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def said(*command: str) -> list[str]:
    found: list[str] = json.loads(subprocess.check_output(command, text=True))
    return found


@pytest.fixture
def launcher(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A program that starts another; its name is the parameter of the test."""
    path = tmp_path / request.param
    path.parent.mkdir(exist_ok=True)
    path.write_text(LAUNCHER)
    return str(path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process the command of its parent")
@pytest.mark.parametrize(
    ("launcher", "options"),
    [
        ("torchrun", ["--nproc-per-node", "2"]),
        ("accelerate", ["launch", "--cpu"]),
    ],
    indirect=["launcher"],
)
def test_the_command_of_a_run_is_its_launchers(launcher: str, options: list[str], script: str) -> None:
    """With all its options: how many ranks, which configuration file."""
    command = [sys.executable, launcher, *options, script, "--steps", "3"]
    assert said(*command) == command


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process the command of its parent")
@pytest.mark.parametrize("launcher", ["torchrun"], indirect=True)
def test_a_module_keeps_its_name(launcher: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m lexforge`: the file of a module is another program when it is started by its path."""
    monkeypatch.chdir(Path(script).parent)
    command = [sys.executable, launcher, "-m", "script", "train"]
    assert said(*command) == command


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process the command of its parent")
def test_torchrun_and_accelerate_are_known_by_their_modules(script: str) -> None:
    """The README starts them so; these are the real ones."""
    torchrun = ["torch.distributed.run", "--nproc-per-node", "1"]
    accelerate = "accelerate.commands.launch --num_processes 1 --num_machines 1 --mixed_precision no".split()
    for launch in (torchrun, [*accelerate, "--dynamo_backend", "no", "--cpu"]):
        command = [sys.executable, "-m", *launch, script, "--steps", "3"]
        assert said(*command) == command


@pytest.mark.parametrize("launcher", ["wrap"], indirect=True)
def test_another_program_is_no_launcher(launcher: str, script: str) -> None:
    """Its words are not ours to keep: they may hold what only its user may read."""
    own = [sys.executable, script, "--steps", "3"]
    assert said(sys.executable, launcher, "--export=HF_TOKEN=hf_private", "--", *own) == own


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--hub-token", "hf_private"], ["--hub-token", "***"]),
        (["--hub_token=hf_private", "--steps=3"], ["--hub_token=***", "--steps=3"]),
        (["--export=HOME,WANDB_API_KEY=private,X=1"], ["--export=HOME,WANDB_API_KEY=***"]),
        (["AWS_SECRET=private", "--Password", "private"], ["AWS_SECRET=***", "--Password", "***"]),
        (["--tokens=128", "--monkey", "3", "a=b"], ["--tokens=128", "--monkey", "3", "a=b"]),
        (["--model", "token", "--steps", "3"], ["--model", "token", "--steps", "3"]),
        (["--no-token", "--steps", "3"], ["--no-token", "--steps", "3"]),
    ],
)
def test_a_secret_in_the_command_is_not_kept(
    words: list[str], kept: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`env.json`, the page and the command that resumes the run are shown to others."""
    monkeypatch.setattr(sys, "orig_argv", ["python", "recipe.py", *words])
    assert launch_command() == [sys.executable, "recipe.py", *kept]


def test_no_file_of_a_run_keeps_a_secret_of_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What claims the folder and what draws the page both read the command."""
    words = ["recipe.py", "--hub-token", "hf_x", "--steps", "3", "--export=WANDB_API_KEY=hf_x"]
    monkeypatch.setattr(sys, "orig_argv", ["python", *words])
    settings = make_dataclass("Settings", ["steps", "resume"])(3, False)
    claim_run_directory(tmp_path, settings, data={})
    page = write_page(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"env.json", "config.json", page.name} <= {path.name for path in files}
    assert not [path.name for path in files if b"hf_x" in path.read_bytes()]
    for file in (page, tmp_path / "env.json"):
        assert "--hub-token" in file.read_text(), "the rest of the command is kept"


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["python", "-u", "-m", "lexforge", "train", "-m"], ["lexforge", "train", "-m"]),
        (["python", "-X", "utf8", "-W", "error", "run.py", "-c", "3"], ["run.py", "-c", "3"]),
        (["python", "-c", "print(1)", "more"], ["print(1)", "more"]),
        (["python", "/bin/lexforge", "train"], ["/bin/lexforge", "train"]),
        (["python"], []),
    ],
)
def test_the_options_of_python_are_no_part_of_what_it_runs(words: list[str], program: list[str]) -> None:
    """A launcher starts its ranks with options of its own, such as -u."""
    assert program_words(words) == program


def test_without_a_launcher_it_is_the_scripts(script: str) -> None:
    """A shell, a test runner or another program that started it is no launcher."""
    assert said(sys.executable, script, "--steps", "3") == [sys.executable, script, "--steps", "3"]
    shell = f"{sys.executable} {script} --steps 3; true"
    assert said("sh", "-c", shell) == [sys.executable, script, "--steps", "3"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the threads of a process by name")
def test_a_process_that_leaves_has_no_thread_of_its_group(warm: WarmProcesses, tmp_path: Path) -> None:
    """A wrapped model in a cycle of references kept them alive, and one of them could abort the process."""
    done = warm.completed("-c", LEAVING, tmp_path)
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    assert any("gloo" in name for name in before)
    assert not [name for name in after if "gloo" in name]


def two_ranks(warm: WarmProcesses, launcher: bool, stopped: int) -> str:
    """What the script of the two ranks said. Under torchrun the store of the ranks is in none of them."""
    script = Path(__file__).with_name("silent_ranks.py")
    if not launcher:
        assert warm.run(script, [stopped], ranks=2) == [0, 0], warm.log.read_text()[-4000:]
        return warm.log.read_text()
    threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [*command, str(script), str(stopped)],
        env={**os.environ, **threads},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows stops no process by a signal")
@pytest.mark.parametrize(
    ("launcher", "stopped", "silent"),
    [
        pytest.param(True, 0, r"rank 0 \(process {pid} on \S+\)", marks=pytest.mark.slow),
        (False, 1, r"rank 1 \(process {pid} on \S+\)"),
        pytest.param(
            *(False, 0, r"rank 0 or the launcher, which holds the store at 127\.0\.0\.1,"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["torchrun", "rank 1", "rank 0, which holds the store"],
)
def test_the_log_names_a_rank_that_does_not_answer(
    warm: WarmProcesses, launcher: bool, stopped: int, silent: str
) -> None:
    """A rank that is stopped left the others waiting up to twelve hours without a word."""
    said = two_ranks(warm, launcher, stopped)
    pid = re.search(rf"rank {stopped} is process (\d+)", said)[1]  # type: ignore[index]
    silent = silent.format(pid=pid)
    assert re.search(f"{silent} has not answered for 2 s", said), said[-4000:]
    assert re.search(f"{silent} answers again", said), said[-4000:]
