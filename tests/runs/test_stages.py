"""The stages of a run: what is printed, and what is measured."""

from __future__ import annotations

from typing import Any

import pytest

from lexforge.runs import Stages, stages


class Process:
    """The one method of accelerate's `PartialState` that is used."""

    def print(self, *args: Any, **kwargs: Any) -> None:
        print(*args, **kwargs)


def test_each_stage_is_named_as_it_begins_and_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two silent minutes before the first step look like a run that hangs."""
    clock = iter([0.0, 1.5, 4.0, 4.5, 5.75])
    monkeypatch.setattr(stages.time, "perf_counter", lambda: next(clock))
    run = Stages(Process())  # type: ignore[arg-type]
    run.begin("read")  # 1.5 to 4
    run.begin("train")  # 4 to 4.5
    run.begin("read")  # 4.5 to 5.75
    assert run.end() == {"read": 2.5 + 1.25, "train": 0.5}
    assert run.table() == "seconds: read 3.8, train 0.5"
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["[    1.5 s] read", "[    4.0 s] train", "[    4.5 s] read"]
