"""A run directory is claimed once, resumed only by the same run, and says where it ran."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest
from warm_processes import WarmProcesses

from lexforge.evaluation import RetrievalResult
from lexforge.report import RunRecord
from lexforge.runs import check_run_directory, claim_run_directory, run_directory

SCRIPT = Path(__file__).with_name("claiming_ranks.py")
# Opens a run, says so, and writes into it until it is killed.
OWNER = """
import dataclasses, sys, time
from lexforge.runs import claim_run_directory
settings = dataclasses.make_dataclass("Settings", ["steps", "resume"])(3, False)
claim_run_directory(sys.argv[1], settings, data={})
print("open", flush=True)
time.sleep(600)
"""


def config(*, resume: bool = False, **values: Any) -> Any:
    """The settings of a run with some values, and with the flag that each recipe has."""
    return make_dataclass("Settings", [*values, "resume"])(**values, resume=resume)


def claim(folder: Path, *, resume: bool = False, data: Any = None, **values: Any) -> None:
    """Claim a folder for a run with some values in its settings."""
    claim_run_directory(folder, config(resume=resume, **values), data=data or {})


def test_a_new_run_leaves_its_configuration_and_environment(tmp_path: Path) -> None:
    """Without them a number cannot be traced to the run that gave it."""
    folder = tmp_path / "run"
    claim(folder, steps=3, model=Path("x"))
    assert json.loads((folder / "config.json").read_text()) == {"steps": 3, "model": "x", "resume": False}
    environment = json.loads((folder / "env.json").read_text())
    assert environment["versions"]["torch"] != "not installed"
    assert environment["ranks"] == 1
    assert environment["processor"]
    assert set(environment["splade_head"]) == {"requested_backend", "timings"}


@pytest.mark.parametrize("found", ["metrics.json", "model", "notes.txt"])
def test_a_folder_with_anything_in_it_is_refused_and_untouched(tmp_path: Path, found: str) -> None:
    """Overwriting somebody's finished run is the costliest mistake a trainer can make."""
    (tmp_path / found).write_text("precious")
    with pytest.raises(FileExistsError, match="already holds"):
        claim(tmp_path, steps=3)
    assert [path.name for path in tmp_path.iterdir()] == [found]


def test_a_folder_that_cannot_be_made_is_refused_before_any_work(tmp_path: Path) -> None:
    """It failed after the model and the data had been read, by a number of the operating system."""
    (tmp_path / "clean.csv").write_text("precious")
    (tmp_path / "link").symlink_to("nowhere")
    for folder, error, message in (
        (tmp_path / "link", FileExistsError, "link is a link to nowhere, which does not exist"),
        (tmp_path / "clean.csv", FileExistsError, "clean.csv is a file, and a run is a folder"),
        (tmp_path / "clean.csv" / "x", NotADirectoryError, "cannot be made, because .*clean.csv is a file"),
        (Path("/proc/x"), OSError, "no file can be written: .*'/proc'"),
    ):
        with pytest.raises(error, match=message):
            check_run_directory(folder, config())
    check_run_directory(tmp_path / "a" / "b", config())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean.csv", "link"]


def test_a_run_that_failed_before_it_did_anything_can_be_started_again(tmp_path: Path) -> None:
    """After a wrong model name the user corrects the flag and runs the same command."""
    claim(tmp_path, model="wrong")
    half = f"config.json.12-{'ab' * 8}.partial"  # it was killed while it wrote its settings
    (tmp_path / half).write_text('{"mod')
    os.utime(tmp_path / half, (0, 0))
    claim(tmp_path, model="right")
    assert json.loads((tmp_path / "config.json").read_text()) == {"model": "right", "resume": False}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "env.json", "run.lock"]


def test_a_run_that_failed_before_its_first_checkpoint_can_be_started_again(tmp_path: Path) -> None:
    """After "out of memory" at step 3 the same command begins anew; nothing of the old run is mixed in."""
    claim(tmp_path, batch=64)
    for name in ("log.jsonl", "bm25.trec", "bm25.scores.json", "initial.trec", "mined.jsonl"):
        (tmp_path / name).write_text("old")
    record = RunRecord(tmp_path)  # a slow model is measured on a sample before training
    record.add("initial_sample", RetrievalResult({"AP": 1.0}, {"q": {"d": 1.0}}, {"AP": {"q": 1.0}}, {}, {}))
    for folder, name in (
        ("backbone", "config.json"),
        ("eval", "Retrieval_evaluation_dev_results.csv"),
        ("unfinished/checkpoint-5", "model.safetensors"),  # it was killed while it wrote that checkpoint
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_text("old")
    claim(tmp_path, batch=32)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "env.json", "run.lock"]
    (tmp_path / "log.jsonl").write_text("new")
    (tmp_path / "checkpoint-5").mkdir()
    with pytest.raises(FileExistsError, match="already holds"):
        claim(tmp_path, batch=32)
    assert (tmp_path / "log.jsonl").read_text() == "new"


def test_a_run_that_was_killed_between_its_two_records_has_not_begun(tmp_path: Path, monkeypatch) -> None:
    """`--resume` told that all data were missing, and to bring them back; a new run begins all the same."""
    claim(tmp_path, steps=2)
    write, written = run_directory.write_json, []

    def killed(path: Path, content: Any) -> None:
        if written:
            raise KeyboardInterrupt
        written.append(path)
        write(path, content)

    monkeypatch.setattr(run_directory, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        claim(tmp_path, steps=3)
    monkeypatch.setattr(run_directory, "write_json", write)
    data = {"rows": {"count": 4, "digest": "0" * 8}}
    with pytest.raises(FileNotFoundError, match="nothing to resume"):
        claim(tmp_path, steps=3, resume=True, data=data)
    claim(tmp_path, steps=3, data=data)


def test_the_files_of_a_beginning_without_a_run_are_somebody_s_own(tmp_path: Path) -> None:
    """A folder with a run of BM25 that a user made must not lose it."""
    (tmp_path / "bm25.trec").write_text("precious")
    (tmp_path / "config.json").write_text("{}")  # many a folder has one, and no run is without env.json
    with pytest.raises(FileExistsError, match="already holds"):
        claim(tmp_path, steps=3)
    assert (tmp_path / "bm25.trec").read_text() == "precious"


def test_resume_needs_a_run_with_the_same_settings(tmp_path: Path) -> None:
    """A resumed run with another learning rate would be neither of the two. The flag `--resume` is itself a
    setting, and must not count as a changed one.
    """
    with pytest.raises(FileNotFoundError, match="nothing to resume"):
        claim(tmp_path / "run", steps=3, resume=True)
    claim(tmp_path / "run", steps=3, phases=(1, 2))
    claim(tmp_path / "run", steps=3, phases=(1, 2), resume=True)
    with pytest.raises(ValueError, match="steps was 3 and is now 4"):
        claim(tmp_path / "run", steps=4, phases=(1, 2), resume=True)


def test_a_run_is_resumed_by_another_path_of_its_folder(tmp_path: Path, monkeypatch) -> None:
    """Its folder is one of its settings, and the run is the same by an absolute path or after a move."""
    monkeypatch.chdir(tmp_path)
    claim(Path("run"), steps=3, output_dir=Path("run"))
    claim(tmp_path / "run", steps=3, output_dir=tmp_path / "run", resume=True)
    shutil.copytree("run", "moved")  # a copy, because this process holds the lock of the folder that it made
    claim(Path("moved"), steps=3, output_dir=Path("moved"), resume=True)
    with pytest.raises(ValueError, match=r"moved: steps was 3 and is now 4\. A"):
        claim(Path("moved"), steps=4, output_dir=Path("moved"), resume=True)


def test_a_run_that_is_to_go_on_for_longer_is_told_how(tmp_path: Path) -> None:
    """Its schedule and the averages over its steps are those of its length, so its model starts a new run."""
    run = tmp_path / "a run"
    claim(run, train={"steps": 200})
    message = r"train\.steps was 200 and is now 400\. .* To train further, "
    with pytest.raises(ValueError, match=message + "resume it without this change to its end, then give"):
        claim(run, train={"steps": 400}, resume=True)
    (run / "model").mkdir()
    with pytest.raises(ValueError, match=message + f"give .* --model '{re.escape(str(run / 'model'))}'$"):
        claim(run, train={"steps": 400}, resume=True)
    assert json.loads((run / "config.json").read_text()) == {"train": {"steps": 200}, "resume": False}


def test_a_nested_setting_that_changed_is_named_alone(tmp_path: Path) -> None:
    """The settings of the loss are some twenty numbers; the message names the one to put back."""
    claim(tmp_path / "run", loss={"temperature": 0.1, "alpha": 1.0})
    changed = {"loss": {"temperature": 0.2, "alpha": 1.0}}
    with pytest.raises(ValueError, match=r"run: loss\.temperature was 0\.1 and is now 0\.2\. A resumed run"):
        claim(tmp_path / "run", **changed, resume=True)


def test_resume_needs_a_run_over_the_same_data(tmp_path: Path) -> None:
    """A file that was replaced under the same path would be trained on from the middle of the other."""
    data = {"documents": {"count": 2, "digest": 10 * "abcd"}, "rows": {"count": 1, "digest": 10 * "1234"}}
    claim(tmp_path / "run", steps=3, data=data)
    claim(tmp_path / "run", steps=3, data=data, resume=True)
    changed = data | {"rows": {"count": 7, "digest": 10 * "5678"}}
    differences = r"began with: rows: 1 \(digest 12341234\), now 7 \(digest 56785678\)\."
    with pytest.raises(ValueError, match=differences):
        claim(tmp_path / "run", steps=3, data=changed, resume=True)


def test_what_an_earlier_version_did_not_record_stops_no_resumed_run(tmp_path: Path) -> None:
    """The parts that it did record have not changed. Without any record nothing is known."""
    data = {"documents": {"count": 2, "digest": 10 * "abcd"}, "rows": {"count": 1, "digest": 10 * "1234"}}
    claim(tmp_path / "run", steps=3, data={"rows": data["rows"]})
    claim(tmp_path / "run", steps=3, data=data, resume=True)
    (tmp_path / "run" / "env.json").unlink()
    with pytest.raises(ValueError, match=r"began with: documents: missing, now 2 .*; rows: missing, now 1 "):
        claim(tmp_path / "run", steps=3, data=data, resume=True)


def test_a_folder_has_one_run_at_a_time(warm: WarmProcesses, tmp_path: Path) -> None:
    """Two runs in one folder replaced each other's checkpoints; and after a SIGKILL, which leaves nobody to
    give the folder back, the run must be resumed all the same.
    """
    run = tmp_path / "run"
    (owner,) = warm.start("-c", [OWNER, run])
    try:
        deadline = time.monotonic() + 120
        while warm.log.read_text() != "open\n":
            assert time.monotonic() < deadline, warm.log.read_text()
            time.sleep(0.01)
        before = {path.name: path.read_bytes() for path in run.iterdir()}
        writing = re.escape(f"process {owner} on {socket.gethostname()} is writing in {run}")
        for resume in (False, True):
            with pytest.raises(BlockingIOError, match=writing):
                check_run_directory(run, config(steps=3, resume=resume))
            with pytest.raises(BlockingIOError, match=writing):
                claim(run, steps=3, resume=resume)
        assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    finally:
        os.kill(owner, signal.SIGKILL)
        warm.end()
    check_run_directory(run, config(steps=3, resume=True))
    claim(run, steps=3, resume=True)


@pytest.mark.parametrize("taken", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_first_rank_opens_the_directory_for_all(taken: bool, warm: WarmProcesses, tmp_path: Path) -> None:
    """Two ranks that both open it would refuse each other's files; a refusal must reach the ranks that wait,
    or they would wait for ever.
    """
    run = tmp_path / "run"
    if taken:
        claim(run)
    ended = warm.run(SCRIPT, [str(run), str(tmp_path)], ranks=2)
    assert ended == [0, 0], warm.log.read_text()[-3000:]
    said = [(tmp_path / str(rank)).read_text().splitlines() for rank in range(2)]
    assert said[0] == said[1]
    assert said[0][-3:] == ["config.json", "env.json", "run.lock"]
    assert [f"process {os.getpid()} on" in line for line in said[0][:-3]] == [True, True] * taken
