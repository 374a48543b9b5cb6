"""The log of a run is on the disk line by line, and holds each step once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import TrainerControl

from lexforge.runs.log_file import LogFile, read_log

CONTROL = TrainerControl()


def write(folder: Path, state: dict[str, Any], *, begin: bool = False, **logs: Any) -> None:
    """What the Trainer does when it begins, or logs a line."""
    callback = LogFile()
    arguments: Any = SimpleNamespace(output_dir=str(folder))
    known: Any = SimpleNamespace(epoch=0.5, max_steps=9, is_world_process_zero=True, **state)
    if begin:
        callback.on_train_begin(arguments, known, CONTROL)
    else:
        callback.on_log(arguments, known, CONTROL, logs=logs)


def test_each_line_can_be_read_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    """The page of a run that goes on shows what has been logged so far."""
    run = tmp_path / "run"  # the Trainer has not made it yet
    write(run, {"global_step": 0}, begin=True)
    write(run, {"global_step": 2}, loss=1.5, share=np.float32(0.25))
    begin, line = read_log(run)
    assert begin["begin"]
    assert begin["max_steps"] == 9
    assert (line["step"], line["epoch"], line["loss"], line["share"]) == (2, 0.5, 1.5, 0.25)
    assert line["time"] >= begin["time"] > 0


def test_a_resumed_run_replaces_the_steps_that_an_interrupted_one_left(tmp_path: Path) -> None:
    """Steps 3 and 4 were trained twice; a curve with both would go back in time."""
    write(tmp_path, {"global_step": 0}, begin=True)
    for step in (1, 2, 3, 4):
        write(tmp_path, {"global_step": step}, loss=float(step))
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"step": 5, "lo')  # it was killed while it wrote
    assert [line["step"] for line in read_log(tmp_path)] == [0, 1, 2, 3, 4]
    write(tmp_path, {"global_step": 2}, begin=True)
    write(tmp_path, {"global_step": 3}, loss=30.0)
    lines = read_log(tmp_path)
    assert [(line["step"], line.get("loss")) for line in lines] == [
        (0, None),
        (1, 1.0),
        (2, 2.0),
        (2, None),
        (3, 30.0),
    ]


def test_a_run_from_the_beginning_starts_a_new_log(tmp_path: Path) -> None:
    """A trial of a search for hyperparameters, or a second call of `train`, begins at step 0."""
    write(tmp_path, {"global_step": 7}, loss=1.0)
    write(tmp_path, {"global_step": 0}, begin=True)
    assert [line["step"] for line in read_log(tmp_path)] == [0]


def test_a_line_that_was_cut_within_a_letter_is_left_out(tmp_path: Path) -> None:
    """A full disk may cut the name of a set in Korean."""
    log = '{"step": 1}\n{"step": 2, "eval_검색": 1}\n'.encode()
    (tmp_path / "log.jsonl").write_bytes(log[: log.index("색".encode()) + 1])
    assert read_log(tmp_path) == [{"step": 1}]


def test_what_is_no_log_is_refused_with_its_line(tmp_path: Path) -> None:
    """A foreign file would become a page without values."""
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n{"loss": 2}\n')
    with pytest.raises(ValueError, match=r"log\.jsonl:2 is no line of a log"):
        read_log(tmp_path)
    assert read_log(tmp_path / "nothing") == []


def test_a_log_that_cannot_be_written_does_not_stop_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk stops a run at its next checkpoint, in order; a line of the log must not do so before."""
    callback = LogFile()
    arguments: Any = SimpleNamespace(output_dir=str(tmp_path))
    state: Any = SimpleNamespace(global_step=0, epoch=0.0, max_steps=9, is_world_process_zero=True)
    callback.on_train_begin(arguments, state, CONTROL)
    (tmp_path / "log.jsonl").unlink()
    (tmp_path / "log.jsonl").mkdir()
    for _ in range(3):
        callback.on_log(arguments, state, CONTROL, logs={"loss": 1.0})
    assert caplog.text.count("training goes on without it") == 1
    (tmp_path / "log.jsonl").rmdir()
    callback.on_log(arguments, state, CONTROL, logs={"loss": 1.0})
    assert list(tmp_path.iterdir()) == []  # a line may be cut, and what stood behind it could not be read
