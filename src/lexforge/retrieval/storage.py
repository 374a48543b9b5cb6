"""Indexes on disk: a directory of files and a manifest with the size and SHA-256 of each."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


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
    paths = sorted(directory.iterdir())
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in paths}
    manifest = {"format": kind, "version": 1, **fields, "files": files}
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def read_manifest(directory: str | Path, kind: str) -> dict[str, Any]:
    """Read and verify a manifest and every file it names.

    Raises:
        FileNotFoundError: No manifest, or a file of the index is missing.
        ValueError: Another format or version, or a file whose size or checksum differs.
    """
    path = Path(directory) / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{directory} holds no saved index: {MANIFEST} is missing")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        found = (manifest["format"], manifest["version"])
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not the manifest of an index: {error!r}") from error
    if found != (kind, 1):
        raise ValueError(f"{path} describes {found[0]!r} version {found[1]!r}; expected {kind!r} version 1")
    for name, (size, digest) in files.items():
        file = Path(directory) / name
        if not file.is_file():
            raise FileNotFoundError(f"{file}, named in {path}, is missing")
        if file.stat().st_size != size:
            raise ValueError(f"{file} has {file.stat().st_size} bytes; {path} says {size}: cut or replaced")
        if _sha256(file) != digest:
            raise ValueError(f"{file} does not have the checksum in {path}: damaged or replaced")
    return manifest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return digest.hexdigest()
