"""The recipe stopped and killed: what it leaves is whole, and it goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from beir_folders import write_beir
from warm_processes import WarmProcesses

from lexforge.runs.checkpoint_folders import by_step, check_seal, last_checkpoint

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "splade_v26.py"
WORDS = "list array search index query document vector sparse token model train python file graph".split()
STEPS = 30
# Of the optimizer and the rest every byte, too: the same state has the same bytes.
COMPARED = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve queries, each with a document and one judged not relevant; eight train, four test."""
    triples = list(enumerate(zip(WORDS, WORDS[1:], WORDS[2:], strict=False)))
    documents = {f"d{i}": (a, f"the {b} of a {c}") for i, (a, b, c) in triples}
    documents |= {f"n{i}": (c, f"no {a} has a {b}") for i, (a, b, c) in triples}
    return write_beir(
        tmp_path_factory.mktemp("faults") / "data",
        documents,
        {f"q{i}": f"{a} {b}" for i, (a, b, _) in triples},
        {
            split: {f"q{i}": {f"d{i}": 1, f"n{i}": 0} for i in numbers}
            for split, numbers in (("train", range(8)), ("test", range(8, 12)))
        },
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with dropout, large enough that a checkpoint takes some time to write (10 MB)."""
    sys.path.insert(0, str(ROOT / "tests"))
    from conftest import write_tiny_checkpoint

    return write_tiny_checkpoint(tmp_path_factory.mktemp("model"), hidden_size=256)


def arguments(data: Path, model: Path, run: Path) -> list[str]:
    """V26 of thirty steps with its teacher and hard negatives; a checkpoint every third step."""
    flags = {
        "preset": "v26",
        "teacher": "lsa-char",
        "teacher-cache": data.parent / "teacher",
        "negatives": "judged",
        "data": data,
        "model": model,
        "output-dir": run,
        "steps": STEPS,
        "batch-size": 4,
        "gradient-accumulation-steps": 1,
        "max-seq-length": 16,
        "save-steps": 3,
        "save-total-limit": None,  # the tests look at every checkpoint
        "logging-steps": 1,
    }
    return [part for name, value in flags.items() for part in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def timed(warm: WarmProcesses, data: Path, model: Path) -> tuple[Path, float]:
    """The run that nobody stopped, and the seconds that it took."""
    run = data.parent / "whole"
    began = time.monotonic()
    assert warm.run(RECIPE, arguments(data, model, run)) == [0], warm.log.read_text()[-3000:]
    seconds = time.monotonic() - began
    assert [path.name for path in by_step(run)] == [f"checkpoint-{step}" for step in range(3, STEPS + 1, 3)]
    return run, seconds


@pytest.fixture(scope="module")
def whole(timed: tuple[Path, float]) -> Path:
    return timed[0]


def assert_same_state(checkpoint: Path, expected: Path) -> None:
    for name in COMPARED:
        assert (checkpoint / name).read_bytes() == (expected / name).read_bytes(), f"{checkpoint}/{name}"


def assert_same_end(run: Path, whole: Path) -> None:
    """Model, last checkpoint and metrics are those of the run that nobody stopped."""
    assert_same_state(run / f"checkpoint-{STEPS}", whole / f"checkpoint-{STEPS}")
    weights = "model/model.safetensors"
    assert (run / weights).read_bytes() == (whole / weights).read_bytes()
    found, expected = (json.loads((folder / "metrics.json").read_text()) for folder in (run, whole))
    assert found["trained"] == expected["trained"]
    assert (run / "run.trec").read_text() == (whole / "run.trec").read_text()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)], ids=["SIGTERM", "SIGINT"]
)
def test_a_signal_saves_and_names_the_command_that_resumes(
    number: signal.Signals, warm: WarmProcesses, data: Path, model: Path, whole: Path
) -> None:
    """Preempted by the scheduler or by Ctrl-C: nothing is lost, and the printed command ends where the
    uninterrupted run ended, bit for bit.
    """
    run = data.parent / number.name
    (process,) = warm.start(RECIPE, arguments(data, model, run))
    deadline = time.monotonic() + 240
    while not (run / "checkpoint-3").exists():
        assert time.monotonic() < deadline, warm.log.read_text()[-3000:]
        time.sleep(0.001)
    os.kill(process, number)
    assert warm.end() == [128 + number]
    said = warm.log.read_text()
    saved = re.search(r"stopped by a signal after step (\d+); saved (\S+)", said)
    assert saved is not None, said[-3000:]
    assert 3 <= int(saved[1]) < STEPS
    assert saved[2] == str(run / f"checkpoint-{saved[1]}") == last_checkpoint(run)
    assert "Traceback" not in said
    command = shlex.split(re.search("resume: (.*)", said)[1])  # type: ignore[index]
    assert command == [sys.executable, str(RECIPE), *arguments(data, model, run), "--resume"]
    assert warm.run(RECIPE, command[2:]) == [0]
    assert_same_end(run, whole)


ONE = "--num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no"
LAUNCHERS = {
    "accelerate": ["accelerate.commands.accelerate_cli", "launch", *ONE.split()],
    "torchrun": ["torch.distributed.run", "--nproc-per-node", "2", "--standalone"],
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_signal_to_the_launcher_stops_the_run_and_its_command_resumes(
    launcher: str, data: Path, model: Path, whole: Path
) -> None:
    """`kill` of the process that the user started. accelerate passes nothing on to a single process, which
    would train on with nobody to stop it; with several, the printed command has to start as many again.
    """
    run = data.parent / launcher
    launch = [sys.executable, "-m", *LAUNCHERS[launcher]]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
    deadline = time.monotonic() + 240
    log = data.parent / f"{launcher}.txt"
    with log.open("w") as file:
        command = [*launch, str(RECIPE), *arguments(data, model, run)]
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    while not (run / "checkpoint-3").exists():
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.001)
    process.terminate()
    process.wait(timeout=200)
    while not (found := re.search("resume: (.*)\n", log.read_text())):
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.01)
    assert (run / "checkpoint-30").exists() is False
    resume = shlex.split(found[1])
    assert resume[-len(command) :] == [*command[1:], "--resume"]
    finished = subprocess.run(resume, env=environment, capture_output=True, text=True, timeout=200)
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "does not go on as it began" not in finished.stderr
    if launcher == "accelerate":
        assert_same_end(run, whole)
    else:
        assert {path.name for path in (run / "checkpoint-30").glob("rng_state*")} == {
            "rng_state_0.pth",
            "rng_state_1.pth",
        }


def test_resuming_a_finished_run_trains_no_further_step(
    warm: WarmProcesses, data: Path, model: Path, whole: Path
) -> None:
    """Killed while it evaluated: the Trainer itself would take one more step and end with another model."""
    before = (whole / "model" / "model.safetensors").read_bytes()
    (whole / "metrics.json").rename(whole / "metrics.before")
    assert warm.run(RECIPE, [*arguments(data, model, whole), "--resume"]) == [0], warm.log.read_text()[-3000:]
    assert (whole / "model" / "model.safetensors").read_bytes() == before
    after, expected = (json.loads((whole / f"metrics.{end}").read_text()) for end in ("json", "before"))
    assert after["trained"] == expected["trained"]
    assert [path.name for path in by_step(whole)][-1] == f"checkpoint-{STEPS}"


def kills(seed: int, seconds: float) -> list[dict[str, Any]]:
    """Ten kills: at a file operation, with part of a checkpoint on the disk, and at any time."""
    draw = random.Random(seed)
    operations = [{"operation": draw.randint(1, 300)} for _ in range(4)]
    written = [{"bytes": draw.randint(1, 9_000_000)} for _ in range(3)]
    moments = [{"seconds": seconds * draw.uniform(0.05, 0.95)} for _ in range(3)]
    found: list[dict[str, Any]] = [*operations, *written, *moments]
    draw.shuffle(found)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sigkill_at_random_points_leaves_whole_checkpoints_or_none(
    seed: int, warm: WarmProcesses, data: Path, model: Path, timed: tuple[Path, float]
) -> None:
    """Thirty kills, between, during and after the writing of checkpoints. After each, every checkpoint is
    whole and holds the very state that the uninterrupted run had at that step; a run that comes to its end,
    in between or at last, ends as the uninterrupted one.
    """
    whole, seconds = timed
    run = data.parent / f"killed-{seed}"
    unfinished = 0

    def go_on(**kill: Any) -> int:
        resume = ["--resume"] if (run / "config.json").exists() else []
        (code,) = warm.run(RECIPE, [*arguments(data, model, run), *resume], **kill)
        assert code in (-signal.SIGKILL, 0), f"{kill}: {warm.log.read_text()[-3000:]}"
        return code

    for number, kill in enumerate(kills(seed, seconds)):
        while go_on(**kill) == 0:  # too late: what is left of the run is shorter; the next one meets it
            assert_same_end(run, whole)
            shutil.rmtree(run)
        print(f"seed {seed}, kill {number} {kill}: left {[path.name for path in by_step(run)][-1:]}")
        for checkpoint in by_step(run):
            check_seal(checkpoint)
            assert_same_state(checkpoint, whole / checkpoint.name)
        unfinished += (run / "unfinished").exists()
    assert unfinished >= 2, "kills that hit a checkpoint while it was written"
    assert go_on() == 0
    assert_same_end(run, whole)
