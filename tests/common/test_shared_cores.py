"""Whether other processes use the cores of a run, and how its threads then wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lexforge.common import shared_cores

LINES = (
    "cpu  9 9 9 {0} {1} 0 0 0\ncpu0 9 9 9 {0} {1} 0 0 0\ncpu1 9 9 9 {2} 0 0 0 0\ncpu12 9 9 9 0 0\nintr 1\n"
)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how busy a core is")
def test_a_busy_process_is_seen() -> None:
    """The very case that was measured: an endless loop beside a run."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        # Other tests may hold the cores at the same time, so that the loop gets a part of one.
        assert shared_cores.busy_cores(0.5) > 0.4
    finally:
        other.kill()
        other.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how busy a core is")
def test_cores_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one second core 0 idles .3 s and waits .2 s for a disk, and core 1 never idles: 1.5 are used."""
    stat, now = tmp_path / "stat", [10.0]
    tick = os.sysconf("SC_CLK_TCK")
    stat.write_text(LINES.format(5 * tick, tick, tick))

    def sleep(seconds: float) -> None:
        now[0] += 1.0
        stat.write_text(LINES.format(5 * tick + int(0.3 * tick), tick + int(0.2 * tick), tick))

    monkeypatch.setattr(shared_cores, "STAT", stat)
    monkeypatch.setattr(shared_cores.time, "sleep", sleep)
    monkeypatch.setattr(shared_cores.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(shared_cores.time, "process_time", lambda: 0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert shared_cores.busy_cores() == pytest.approx(1.5)
    monkeypatch.setattr(shared_cores, "STAT", tmp_path / "none")
    assert shared_cores.busy_cores() == 0


@pytest.mark.parametrize(
    ("busy", "environment", "modules", "expected"),
    [
        (1.0, {}, {}, "passive"),
        (0.2, {}, {}, None),
        (1.0, {"OMP_WAIT_POLICY": "active"}, {}, "active"),
        (1.0, {"GOMP_SPINCOUNT": "5"}, {}, None),
        (1.0, {}, {"torch": object()}, None),
    ],
)
def test_threads_sleep_where_cores_are_shared(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    busy: float,
    environment: dict,
    modules: dict,
    expected: str | None,
) -> None:
    """Alone they must not, the user's word counts, and after torch was loaded it would change nothing."""
    monkeypatch.setattr(os, "environ", dict(environment))
    monkeypatch.setattr(sys, "modules", modules)
    monkeypatch.setattr(shared_cores, "busy_cores", lambda: busy)
    shared_cores.share_cores()
    assert os.environ.get("OMP_WAIT_POLICY") == expected
    assert ("Other processes use these cores" in capsys.readouterr().err) == (expected == "passive")
