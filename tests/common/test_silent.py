"""A block in which another package logs nothing."""

from __future__ import annotations

import logging

import pytest

from lexforge.common.silent import silent


@pytest.mark.parametrize("name", ["another.package", None])
def test_a_package_is_silent_inside_and_as_before_afterwards(
    name: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A level that stays after an error would hide what the package says for the rest of the process."""
    log = logging.getLogger(name)
    level = log.level

    def work() -> None:
        log.error("an oddity of a file")
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"), silent(name):
        work()
    assert log.level == level
    log.error("what matters")
    assert caplog.messages == ["what matters"]
