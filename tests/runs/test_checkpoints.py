"""Checkpoints are whole or none: seals, places, rotation and room on the disk."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lexforge.runs.checkpoint_folders import (
    DamagedCheckpointError,
    by_step,
    check_seal,
    disk_full,
    last_checkpoint,
    publish_checkpoint,
    rotate,
    seal,
)


def make(run: Path, step: int, content: bytes = b"weights") -> Path:
    """A published checkpoint with a file in a folder of its own."""
    staged = run / "unfinished" / f"checkpoint-{step}"
    (staged / "1_Pooling").mkdir(parents=True)
    (staged / "model.safetensors").write_bytes(content)
    (staged / "1_Pooling" / "config.json").write_text("{}")
    publish_checkpoint(staged, run / f"checkpoint-{step}")
    return run / f"checkpoint-{step}"


def test_a_published_checkpoint_has_its_place_and_every_file_in_its_seal(tmp_path: Path) -> None:
    """What is under its own name is whole; nothing of the making is left."""
    checkpoint = make(tmp_path, 7)
    check_seal(checkpoint)
    sealed = json.loads((checkpoint / "manifest.json").read_text())["files"]
    assert set(sealed) == {"model.safetensors", "1_Pooling/config.json"}
    # sha256sum of the text "{}"
    digest = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    entry = sealed["1_Pooling/config.json"]
    assert (entry["bytes"], entry["sha256"]) == (2, digest)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-7"]


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda folder: (folder / "model.safetensors").write_bytes(b"weigh"), "has 5 bytes"),
    "one bit": (lambda folder: (folder / "model.safetensors").write_bytes(b"weightr"), "checksum"),
    "missing": (lambda folder: (folder / "1_Pooling" / "config.json").unlink(), r"missing.*1_Pooling/config"),
    "added": (lambda folder: (folder / "scaler.pt").write_bytes(b"x"), r"holds .*scaler\.pt.*does not name"),
    "no seal": (lambda folder: (folder / "manifest.json").unlink(), "not written to the end"),
    "cut seal": (lambda folder: (folder / "manifest.json").write_text('{"fi'), "is not the manifest"),
    "other seal": (lambda folder: (folder / "manifest.json").write_text("[3]"), "is not the manifest"),
    "bytes in the seal": (
        lambda folder: (folder / "manifest.json").write_bytes(b"\xff"),
        "is not the manifest",
    ),
}


@pytest.mark.parametrize("damage_name", DAMAGE)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage_name: str
) -> None:
    """Weights with one changed bit load without complaint; the seal is what tells."""
    damage, message = DAMAGE[damage_name]
    earlier, checkpoint = make(tmp_path, 900), make(tmp_path, 1000)
    damage(checkpoint)
    with pytest.raises(DamagedCheckpointError, match=message):
        check_seal(checkpoint)
    with caplog.at_level(logging.WARNING):
        assert last_checkpoint(tmp_path) == str(earlier)
    assert "checkpoint-1000" in caplog.text
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        check_seal(tmp_path / "checkpoint-1")


def test_the_newest_is_the_highest_step_and_nothing_else_counts(tmp_path: Path) -> None:
    """checkpoint-1000 comes after checkpoint-200; a copy or an unfinished one is no checkpoint."""
    assert last_checkpoint(tmp_path / "nowhere") is None
    for step in (1000, 200):
        make(tmp_path, step)
    shutil.copytree(tmp_path / "checkpoint-1000", tmp_path / "checkpoint-1200-copy")
    shutil.copytree(tmp_path / "checkpoint-1000", tmp_path / "unfinished" / "checkpoint-1300")
    assert [path.name for path in by_step(tmp_path)] == ["checkpoint-200", "checkpoint-1000"]
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-1000")


def test_an_abandoned_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    """A run resumed from an earlier step comes by the same steps again."""
    make(tmp_path, 5, b"old")
    assert (make(tmp_path, 5, b"new") / "model.safetensors").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


def test_rotation_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    """By step, not by time of writing, which a copy of the run does not keep."""
    for step in (40, 10, 30, 20):
        make(tmp_path, step)
    rotate(tmp_path, None, None)
    assert len(by_step(tmp_path)) == 4
    rotate(tmp_path, 2, str(tmp_path / "checkpoint-10"))
    assert [path.name for path in by_step(tmp_path)] == ["checkpoint-10", "checkpoint-30", "checkpoint-40"]
    assert not (tmp_path / "unfinished").exists()


def test_files_are_on_the_disk_before_the_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seal that survives a power cut which its files do not would be a lie."""
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    synced: list[str] = []
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to tell a file by its descriptor")
    monkeypatch.setattr(os, "fsync", spy)
    seal(tmp_path)
    assert synced == ["a", "b", "manifest.json"]


def test_missing_room_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 MB needed: 4 free are 6 too few; 4 free and 7 written are enough, unless a quota says otherwise."""
    megabyte = 10**6
    usage = shutil._ntuple_diskusage(100 * megabyte, 96 * megabyte, 4 * megabyte)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    make(tmp_path, 3)
    message = disk_full(tmp_path, 10 * megabyte)
    assert message is not None
    assert "10.0 MB" in message
    assert "6.0 MB are missing" in message
    assert message.endswith(str(tmp_path / "checkpoint-3"))
    assert disk_full(tmp_path, 10 * megabyte, 7 * megabyte) is None
    assert disk_full(tmp_path, 10 * megabyte, 7 * megabyte, PermissionError(errno.EPERM, "no")) is None
    quota = disk_full(tmp_path, 10 * megabyte, 7 * megabyte, OSError(errno.EDQUOT, "quota"))
    assert quota is not None
    assert "3.0 MB are missing" in quota
