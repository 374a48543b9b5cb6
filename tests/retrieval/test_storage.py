"""Manifest and checksums."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lexforge.retrieval.storage import new_directory, read_manifest, write_manifest


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = new_directory(tmp_path / "new" / "index")
    (folder / "a.bin").write_bytes(b"abc")
    write_manifest(folder, "kind", {"extra": 7})
    return folder


def test_round_trip_with_a_known_digest(saved: Path) -> None:
    """The SHA-256 of `abc` is the first example of FIPS 180-2."""
    manifest = read_manifest(saved, "kind")
    assert manifest["extra"] == 7
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert manifest["files"] == {"a.bin": {"bytes": 3, "sha256": digest}}


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda folder: (folder / "a.bin").write_bytes(b"ab"), ValueError, "has 2 bytes; .* says 3"),
        (lambda folder: (folder / "a.bin").write_bytes(b"abd"), ValueError, "does not have the checksum"),
        (lambda folder: (folder / "a.bin").unlink(), FileNotFoundError, "a.bin, named in"),
        (lambda folder: (folder / "manifest.json").unlink(), FileNotFoundError, "holds no saved index"),
        (lambda folder: (folder / "manifest.json").write_text("{"), ValueError, "is not the manifest"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), ValueError, "is not the manifest"),
        (lambda folder: (folder / "manifest.json").write_bytes(b"\xff"), ValueError, "is not the manifest"),
    ],
)
def test_damage_is_refused(saved: Path, damage, error: type[Exception], message: str) -> None:
    """A cut or altered index gives wrong answers silently, or reads outside its arrays."""
    damage(saved)
    with pytest.raises(error, match=message):
        read_manifest(saved, "kind")


def test_another_kind_or_version_is_refused(saved: Path) -> None:
    """A later format must not be read as this one."""
    with pytest.raises(ValueError, match="describes 'kind' version 1; expected 'other' version 1"):
        read_manifest(saved, "other")
    manifest = json.loads((saved / "manifest.json").read_text())
    (saved / "manifest.json").write_text(json.dumps(manifest | {"version": 2}))
    with pytest.raises(ValueError, match="version 2; expected 'kind' version 1"):
        read_manifest(saved, "kind")


def test_nothing_is_overwritten(saved: Path, tmp_path: Path) -> None:
    """Saving over an index that is memory-mapped would pull the file from under it."""
    with pytest.raises(FileExistsError, match="not an empty directory"):
        new_directory(saved)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        new_directory(tmp_path / "file")
