"""A signal is a request once, and itself the second time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from lexforge.training.signals import StopRequest, TrainingInterrupted


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own handler of SIGINT, which a shell takes away from jobs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_the_first_signal_is_noted_and_the_second_acts() -> None:
    """Who presses Ctrl-C twice wants to leave at once."""
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert stop.number == 0
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.number == signal.SIGINT
        assert signal.getsignal(signal.SIGTERM) is before
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with stop:
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


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
