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
