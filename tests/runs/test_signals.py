"""A signal is a request; Ctrl-C pressed again is itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from lexforge.runs import signals
from lexforge.runs.signals import StopRequest, TrainingInterrupted


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own handler of SIGINT, which a shell takes away from jobs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_the_first_signal_is_noted_and_ctrl_c_again_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who presses Ctrl-C twice wants to leave at once."""
    now = [5.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert stop.number == 0
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.number == signal.SIGINT
        now[0] += 2
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with stop:
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_what_a_launcher_passes_on_is_no_second_request(
    first: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler signals every process, a terminal the whole group, and the launcher its ranks again."""
    now = [5.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    with StopRequest() as stop:
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), signal.SIGINT)
        now[0] += 60
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.number == first


def test_in_another_thread_signals_are_left_alone() -> None:
    """Python refuses handlers there; a trainer in a thread of a server must still train."""
    found: list[object] = []

    def enter() -> None:
        with StopRequest():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]


def test_the_exit_code_is_that_of_the_signal() -> None:
    """A scheduler tells a preempted job from a failed one by 143."""
    assert TrainingInterrupted(signal.SIGTERM, "run/checkpoint-3", 3).code == 143
    assert TrainingInterrupted(signal.SIGINT, "run/checkpoint-3", 3).code == 130
