"""Progress of long work where no terminal is: lines, not a bar."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest
from tqdm import tqdm
from tqdm.auto import tqdm as tqdm_of_others

from lexforge.common import progress
from lexforge.common.progress import Progress, bars_on_a_terminal_only
from lexforge.settings import TrainingSettings


def count_to_ten(show: bool = True) -> None:
    with Progress(10, "Work", "steps", show=show) as counter:
        for _ in range(5):
            counter.update(2)


def test_lines_are_rare_and_the_last_one_is_there(caplog, capsys) -> None:
    """A job's log must say that the work ended, and must not hold a line a batch."""
    with caplog.at_level(logging.INFO):
        count_to_ten()
    assert caplog.messages == ["Work: 10 of 10 steps"]
    assert capsys.readouterr().err == ""


def test_a_line_every_interval(caplog, monkeypatch) -> None:
    """Hours of work must show that they go on."""
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    with caplog.at_level(logging.INFO):
        count_to_ten()
    assert caplog.messages == [f"Work: {done} of 10 steps" for done in (2, 4, 6, 8, 10)]


def test_a_line_says_how_long_the_rest_takes(caplog, monkeypatch) -> None:
    """Somebody who waits wants to know until when; a bar says it. Each line goes by the speed since the last,
    because what a cache holds is done at once.
    """
    seconds = 0.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: seconds))
    with caplog.at_level(logging.INFO), Progress(1000, "Work", "steps") as counter:
        for now, count in ((60.0, 20), (80.0, 580), (100.0, 320), (110.0, 20), (120.0, 30), (130.0, 30)):
            seconds = now
            counter.update(count)
    assert caplog.messages == [
        "Work: 20 of 1000 steps, about 49 min left",  # 980 times 3 s
        "Work: 600 of 1000 steps, about 10 s left",  # 400 times 20 / 580 s, which is 14 s
        "Work: 920 of 1000 steps",  # 80 times 1 / 16 s, which is 5 s
        "Work: 940 of 1000 steps, about 30 s left",
        "Work: 970 of 1000 steps",  # 10 s
        "Work: 1000 of 1000 steps",
    ]
    caplog.clear()
    with caplog.at_level(logging.INFO), Progress(1000, "Work", "steps") as counter:
        seconds += 100.0
        counter.update(10)
    assert caplog.messages == ["Work: 10 of 1000 steps, about 2 h 45 min left"]  # 9,900 s
    caplog.clear()
    with caplog.at_level(logging.INFO), Progress(None, "Work", "steps") as counter:
        seconds += 100.0
        counter.update(10)
    assert caplog.messages == ["Work: 10 steps", "Work: 10 steps in all"]


def test_a_terminal_gets_a_bar(caplog, capsys, monkeypatch) -> None:
    """On a terminal a bar replaces the lines."""
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    with caplog.at_level(logging.INFO):
        count_to_ten()
    assert "10/10" in capsys.readouterr().err
    assert not caplog.messages


def test_a_notebook_gets_a_bar(caplog, capsys, monkeypatch) -> None:
    """Its standard error is no terminal, and nobody sees lines of the log there."""
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with caplog.at_level(logging.INFO):
        count_to_ten()
    assert "10/10" in capsys.readouterr().err
    assert not caplog.messages
    assert progress.tqdm is tqdm_of_others  # which draws a widget where the notebook has them
    assert TrainingSettings(precision="fp32").arguments("run").disable_tqdm is False
    shell.config.clear()  # the shell of a terminal, whose output goes to a file
    assert not progress.bars_are_seen()
    assert TrainingSettings(precision="fp32").arguments("run").disable_tqdm is True


def test_silence_when_not_wanted(caplog, capsys) -> None:
    """An evaluation inside training prints nothing unless asked."""
    with caplog.at_level(logging.INFO):
        count_to_ten(show=False)
    assert not caplog.messages
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_bars_of_other_packages_stay_on_terminals(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the log of a job each step of a bar is a line, and the lines of the run are lost among them."""
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: terminal, raising=False)
    with bars_on_a_terminal_only():
        for bar in (tqdm, tqdm_of_others):
            assert list(bar(range(3), desc="Loading weights")) == [0, 1, 2]
    assert ("Loading weights" in capsys.readouterr().err) is terminal
    list(tqdm(range(3), desc="after the command"))
    assert "after the command" in capsys.readouterr().err
