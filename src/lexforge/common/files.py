"""Indexes on disk: a directory of files and a manifest with the size and SHA-256 of each, and its own.

What loading reads anyway is hashed at every loading. Reading a large memory-mapped file through only to check
it would undo the mapping. So such a file is hashed only where it may have changed since `save`: its time of
modification differs from the one in the manifest, or lies too close to the manifest's writing to tell
(`SETTLED_NS`; that bounds the cost by what is written in two seconds). A change that keeps size and time, as
by a failing disk, is found with `verify=True`, which hashes everything: about one second a gigabyte.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
VERSION = 3
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
SETTLED_NS = 2_000_000_000  # the coarsest clock of a common file system (FAT)


def new_directory(directory: str | Path) -> Path:
    """Create a directory for an index; one that holds anything is refused, so nothing is overwritten.

    Raises:
        FileExistsError: The directory is not empty, or is a file.
    """
    path = Path(directory)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"{path} exists and is not an empty directory; an index is saved to a new one")
    path.mkdir(parents=True, exist_ok=True)
    return path


def write_manifest(directory: Path, kind: str, fields: dict[str, Any]) -> None:
    """Write the manifest, last, so that an interrupted save is recognised.

    Args:
        directory: Holds the files of the index and nothing else.
        kind: Name of the format; a reader accepts its own only.
        fields: What else the reader needs, in JSON types.
    """
    files = {}
    for path in sorted(directory.iterdir()):
        status = path.stat()
        digest = file_sha256(path)
        files[path.name] = {"bytes": status.st_size, "modified_ns": status.st_mtime_ns, "sha256": digest}
    origin = {"format": kind, "version": VERSION, "written_ns": time.time_ns()}
    manifest = {**origin, "fields": fields, "files": files}
    manifest["sha256"] = content_sha256(manifest)
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def read_manifest(
    directory: str | Path, kind: str, verify: bool = False, mapped: Collection[str] = ()
) -> dict[str, Any]:
    """Read a manifest and check it and every file it names.

    Args:
        directory: What an index was saved to.
        kind: Name of the format.
        verify: Hash every file.
        mapped: Files that the index memory-maps: hashed only if they are not as `save` left them.

    Returns:
        What the index wrote beside its files.

    Raises:
        FileNotFoundError: No manifest, or a file of the index is missing.
        ValueError: Another format or version, a manifest or a file whose size or checksum differs, a file
            that the manifest does not name, or one that lies elsewhere.
    """
    path = Path(directory) / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{directory} holds no saved index: {MANIFEST} is missing")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        found = (manifest["format"], manifest["version"])
    except _MALFORMED as error:
        raise ValueError(f"{path} is not the manifest of an index: {error!r}") from error
    if found != (kind, VERSION):
        expected = f"{kind!r} version {VERSION}"
        raise ValueError(f"{path} describes {found[0]!r} version {found[1]!r}; expected {expected}")
    try:
        if manifest.pop("sha256", None) != content_sha256(manifest):
            raise ValueError("it does not have its own checksum: damaged or changed")
        fields, settled = {**manifest["fields"]}, int(manifest["written_ns"]) - SETTLED_NS
        files = [
            (name, entry["bytes"], int(entry["modified_ns"]), entry["sha256"])
            for name, entry in manifest["files"].items()
        ]
    except _MALFORMED as error:
        raise ValueError(f"{path} is not the manifest of an index: {error!r}") from error
    found_files = {file.name for file in Path(directory).iterdir()} - {MANIFEST}
    if strange := found_files - {name for name, *_ in files}:
        raise ValueError(f"{directory} holds {sorted(strange)}, which {path} does not name")
    for name, size, modified, digest in files:
        file = Path(directory) / name
        if file.name != name or file.is_symlink():
            raise ValueError(f"{path} names {name!r}; a file of an index lies in its directory, as no link")
        if not file.is_file():
            raise FileNotFoundError(f"{file}, named in {path}, is missing")
        status = file.stat()
        if status.st_size != size:
            raise ValueError(f"{file} has {status.st_size} bytes; {path} says {size}: cut or replaced")
        trusted = name in mapped and status.st_mtime_ns == modified and modified <= settled
        if (verify or not trusted) and file_sha256(file) != digest:
            raise ValueError(f"{file} does not have the checksum in {path}: damaged or replaced")
    return fields


def content_sha256(manifest: dict[str, Any]) -> str:
    """The SHA-256 of what a manifest says, however it is laid out."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal, read a mebibyte at a time."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return digest.hexdigest()
