"""Manifests: what was saved is what is read, or an error says what is wrong."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from lexforge.retrieval.base import read_ids, write_ids
from lexforge.storage import manifest as module
from lexforge.storage.manifest import pack_manifest, read_manifest, unpack_manifest, write_manifest


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"abc")
    write_manifest(folder, "kind", {"extra": 7})
    return folder


def test_round_trip_with_a_known_digest(saved: Path) -> None:
    """The SHA-256 of `abc` is the first example of FIPS 180-2."""
    assert read_manifest(saved, "kind") == {"extra": 7}
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    entry = json.loads((saved / "manifest.json").read_text())["files"]["a.bin"]
    assert (entry["bytes"], entry["sha256"]) == (3, digest)


def test_a_mapped_file_as_save_left_it_is_not_read_again_unless_asked(saved: Path, monkeypatch) -> None:
    """Hashing a memory-mapped index at every load would read it whole; a change must still be found."""
    (saved / "manifest.json").unlink()
    minute_ago = time.time_ns() - 60 * 10**9
    os.utime(saved / "a.bin", ns=(minute_ago, minute_ago))
    write_manifest(saved, "kind", {})
    hashed: list[str] = []
    sha256 = module.file_sha256
    monkeypatch.setattr(module, "file_sha256", lambda path: hashed.append(path.name) or sha256(path))

    def read(**options) -> list[str]:
        hashed.clear()
        read_manifest(saved, "kind", **options)
        return list(hashed)

    assert read(mapped={"a.bin"}) == []
    assert read(mapped={"a.bin"}, verify=True) == ["a.bin"]
    assert read() == ["a.bin"]  # one that is read whole in any case
    os.utime(saved / "a.bin")  # a copy, or written again with the same bytes
    assert read(mapped={"a.bin"}) == ["a.bin"]
    (saved / "a.bin").write_bytes(b"abd")
    with pytest.raises(ValueError, match="does not have the checksum"):
        read(mapped={"a.bin"})
    os.utime(saved / "a.bin", ns=(minute_ago, minute_ago))  # as a failing disk would leave it
    assert read(mapped={"a.bin"}) == []
    for options in ({"mapped": {"a.bin"}, "verify": True}, {}):
        with pytest.raises(ValueError, match="does not have the checksum"):
            read(**options)


def test_a_changed_field_of_the_manifest_is_refused(saved: Path) -> None:
    """Settings stand in the manifest alone: a changed one would give other hits with all files intact."""
    file = saved / "manifest.json"
    text = file.read_text()
    for old, new in (('"extra": 7', '"extra": 3'), ('"bytes": 3', '"bytes": 2'), ('"sha256"', '"sha257"')):
        assert old in text
        file.write_text(text.replace(old, new))
        with pytest.raises(ValueError, match="does not have its own checksum"):
            read_manifest(saved, "kind")
    file.write_text(json.dumps(json.loads(text)))  # the same, laid out in another way
    assert read_manifest(saved, "kind") == {"extra": 7}


def test_ids_are_stored_as_they_are(tmp_path: Path) -> None:
    """An id can hold anything JSON can, also half a surrogate pair from a damaged corpus."""
    names = ["한국", "a\nb", "\ud800", '"']
    write_ids(tmp_path, names)
    ids = read_ids(tmp_path)
    assert [list(ids), [ids[place] for place in range(4)]] == [names, names]
    with pytest.raises(IndexError):
        ids[4]
    assert ids.positions["\ud800"] == 2
    ids.extend(["b"])
    assert list(ids) == [*names, "b"]
    assert ids.positions["b"] == 4


@pytest.mark.parametrize("ends", [[1, 1], [2, 1], [1], [1, 3], [-1, 2], [0, 2]])
def test_ids_whose_ends_do_not_fit_are_refused(ends: list[int], tmp_path: Path) -> None:
    """They would be read from other memory, or name no document."""
    write_ids(tmp_path, ["a", "b"])
    np.save(tmp_path / "id_ends.npy", np.array(ends))
    with pytest.raises(ValueError, match="the ids must have a character each and end at 2"):
        read_ids(tmp_path)


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda folder: (folder / "a.bin").write_bytes(b"ab"), ValueError, "has 2 bytes; .* says 3"),
        (lambda folder: (folder / "a.bin").write_bytes(b"abd"), ValueError, "does not have the checksum"),
        (
            lambda folder: (folder / "a.bin").unlink(),
            FileNotFoundError,
            r"missing files \['a.bin'\], named in",
        ),
        (
            lambda folder: (folder / "manifest.json").unlink(),
            FileNotFoundError,
            "holds no kind: manifest.json is missing",
        ),
        (lambda folder: (folder / "manifest.json").write_text("{"), ValueError, "is not the manifest"),
    ],
)
def test_damage_is_refused(saved: Path, damage, error: type[Exception], message: str) -> None:
    """A cut or altered index gives wrong answers silently, or reads outside its arrays."""
    damage(saved)
    with pytest.raises(error, match=message):
        read_manifest(saved, "kind")


def test_another_kind_or_version_is_refused(saved: Path) -> None:
    """Another format must not be read as this one; up to version 2 a manifest had no checksum."""
    with pytest.raises(ValueError, match="describes 'kind' version 4; expected 'other' version 4"):
        read_manifest(saved, "other")
    manifest = json.loads((saved / "manifest.json").read_text())
    (saved / "manifest.json").write_text(json.dumps(manifest | {"version": 2}))
    with pytest.raises(ValueError, match="version 2; expected 'kind' version 4"):
        read_manifest(saved, "kind")


def test_the_manifest_names_what_lies_in_folders_too(saved: Path) -> None:
    """A checkpoint has folders; an added, a moved and a linked file are refused wherever they lie."""
    (saved / "manifest.json").unlink()
    (saved / "inner").mkdir()
    (saved / "inner" / "b.bin").write_bytes(b"b")
    write_manifest(saved, "kind", {}, durable=True)
    assert read_manifest(saved, "kind") == {}
    (saved / "inner" / "added").touch()
    with pytest.raises(ValueError, match=r"holds \['inner/added'\], which"):
        read_manifest(saved, "kind")
    (saved / "inner" / "added").unlink()
    (saved / "inner").rename(saved / "outer")
    with pytest.raises(FileNotFoundError, match=r"missing files \['inner/b.bin'\]"):
        read_manifest(saved, "kind")
    (saved / "inner").symlink_to(saved / "outer")
    for use in (lambda: read_manifest(saved, "kind"), lambda: write_manifest(saved, "kind", {})):
        with pytest.raises(ValueError, match="inner is a link"):
            use()


def test_a_packed_manifest_protects_its_fields_and_parts() -> None:
    """Nothing else protects what is in one file; equal input gives equal text, as ranks need it."""
    parts = {"a": b"abc", "b": bytearray(b"")}
    text = pack_manifest("kind", {"n": 1}, parts)
    assert text == pack_manifest("kind", {"n": 1}, dict(parts))
    assert "\n" not in text
    assert unpack_manifest(text, "kind", parts) == unpack_manifest(text.encode(), "kind", parts) == {"n": 1}
    for changed in ({}, {"a": b"abc"}, {**parts, "a": b"abd"}, {**parts, "c": b""}, {"a": b"abc", "c": b""}):
        with pytest.raises(ValueError, match="does not have the checksum in its manifest"):
            unpack_manifest(text, "kind", changed)
    with pytest.raises(ValueError, match="does not have its own checksum"):
        unpack_manifest(text.replace('"n": 1', '"n": 2'), "kind", parts)
    with pytest.raises(ValueError, match="describes 'kind' version 4; expected 'other' version 4"):
        unpack_manifest(text, "other", parts)
    for bad in ("", "{", "[]", "3", b"\xff", '{"sha256": "0"}'):
        with pytest.raises(ValueError, match="is not the manifest of a kind"):
            unpack_manifest(bad, "kind", parts)
