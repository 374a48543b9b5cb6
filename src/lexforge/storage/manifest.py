"""Manifests: what a file or a folder holds, with the size and SHA-256 of each part and a checksum of its own.

Everything that lexforge keeps on disk carries one manifest. That of a folder is its file `manifest.json` and
names every file below it (indexes, blocks of a teacher cache, checkpoints). That of a single file is a line
of JSON inside it and names the arrays or the text beside it (vectors, the state of a loss, cached pairs).
A manifest without parts is a record that protects its own fields (an encoded corpus, the source of an index).

What loading reads anyway is hashed at every loading, also in a cache, because docs/guarantees.md promises
that a changed bit is refused. Reading a large memory-mapped file through only to check it would undo the
mapping. So such a file is hashed only where it may have changed since it was saved: its time of modification
differs from the one in the manifest, or lies too close to the manifest's writing to tell (`SETTLED_NS`; that
bounds the cost by what is written in two seconds). A change that keeps size and time, as by a failing disk,
is found with `verify=True`, which hashes everything: about one second per gigabyte.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lexforge.storage.files import sync

MANIFEST = "manifest.json"  # the file of a folder
METADATA = "manifest"  # the entry of a safetensors file; a single one, for it orders several at random
VERSION = 4
SETTLED_NS = 2_000_000_000  # the coarsest clock of a common file system (FAT)
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading a damaged or foreign file raises: a field may be missing or of another type."""


def pack_manifest(format_name: str, fields: Mapping[str, Any], parts: Mapping[str, Any] | None = None) -> str:
    """Return the manifest of a single file as one line of JSON; equal input gives equal text.

    Args:
        format_name: Name of the format; a reader accepts its own only.
        fields: What else the reader needs, in JSON types.
        parts: Name to content (bytes or a contiguous buffer) of what the manifest protects beside itself.
    """
    return json.dumps(_signed(format_name, {"fields": dict(fields), "files": _checksums(parts)}))


def unpack_manifest(
    text: str | bytes | None, format_name: str, parts: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Check what `pack_manifest` returned, and the parts as they were read.

    Args:
        text: The manifest; None where the file has none.
        format_name: Name of the format.
        parts: Name to content of all parts, as they are now.

    Returns:
        The fields.

    Raises:
        ValueError: If the manifest is missing, damaged, or of another format or version, or if the parts are
            not those that it names.
    """
    if text is None:
        raise ValueError(
            f"it has no manifest of a {format_name}: foreign, or saved by another version of lexforge"
        )
    fields, entries, _ = _read(text, format_name, "the text found")
    if entries != _checksums(parts):
        raise ValueError("the content does not have the checksum in its manifest: damaged or replaced")
    return fields


def write_manifest(
    directory: Path, format_name: str, fields: Mapping[str, Any], *, durable: bool = False
) -> None:
    """Write the manifest of a folder, last, so that an interrupted save is recognised.

    Args:
        directory: Holds what is saved and nothing else.
        format_name: Name of the format; a reader accepts its own only.
        fields: What else the reader needs, in JSON types.
        durable: Bring every file to the disk before the manifest, and then the manifest, for what must
            survive a power cut.

    Raises:
        ValueError: If the folder holds a link.
    """
    found = dict(sorted(_files(directory).items()))
    if durable:
        for path in found.values():
            sync(path)
    statuses = [path.stat() for path in found.values()]
    with ThreadPoolExecutor(2) as pool:  # the files of an index are large
        digests = pool.map(file_sha256, found.values())
        files = {
            name: {"bytes": status.st_size, "modified_ns": status.st_mtime_ns, "sha256": digest}
            for name, status, digest in zip(found, statuses, digests, strict=True)
        }
    manifest = _signed(format_name, {"written_ns": time.time_ns(), "fields": dict(fields), "files": files})
    path = directory / MANIFEST
    path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    if durable:
        sync(path)


def read_manifest(
    directory: str | Path, format_name: str, verify: bool = False, mapped: Collection[str] = ()
) -> dict[str, Any]:
    """Read the manifest of a folder and check it and every file it names.

    No path is made of a name in the manifest: the names are compared with those of the files that are there.

    Args:
        directory: What was saved.
        format_name: Name of the format.
        verify: Hash every file.
        mapped: Files that the reader memory-maps: hashed only if they are not as they were saved.

    Returns:
        The fields.

    Raises:
        FileNotFoundError: If the manifest or a file that it names is missing.
        ValueError: If the manifest is of another format or version, if it or a file does not have its size or
            checksum, if a file is there that the manifest does not name, or if one is a link.
    """
    path = Path(directory) / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{directory} holds no {format_name}: {MANIFEST} is missing")
    fields, entries, written_ns = _read(path.read_bytes(), format_name, str(path))
    try:
        expected = {
            name: (entry["bytes"], int(entry["modified_ns"]), entry["sha256"])
            for name, entry in entries.items()
        }
        settled = int(written_ns) - SETTLED_NS
    except MALFORMED as error:
        raise ValueError(f"{path} is not the manifest of a folder: {error!r}") from error
    found = _files(Path(directory))
    if missing := sorted(expected.keys() - found.keys()):
        raise FileNotFoundError(f"{directory}: missing files {missing}, named in {path}")
    # An added file is refused too: loaders of other packages look for names such as `scaler.pt`.
    if strange := sorted(found.keys() - expected.keys()):
        raise ValueError(f"{directory} holds {strange}, which {path} does not name")
    for name, (size, modified, digest) in expected.items():
        file = found[name]
        status = file.stat()
        if status.st_size != size:
            raise ValueError(f"{file} has {status.st_size} bytes; {path} says {size}: cut or replaced")
        trusted = name in mapped and status.st_mtime_ns == modified and modified <= settled
        if (verify or not trusted) and file_sha256(file) != digest:
            raise ValueError(f"{file} does not have the checksum in {path}: damaged or replaced")
    return fields


def content_sha256(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a JSON object says, however it is laid out."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _signed(format_name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    manifest = {"format": format_name, "version": VERSION, **content}
    return {**manifest, "sha256": content_sha256(manifest)}


def _read(text: str | bytes, format_name: str, what: str) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Return fields, parts and time of writing (None in a single file) of a manifest with its checksum."""
    try:
        manifest = json.loads(text)
        found = (manifest["format"], manifest["version"])
    except MALFORMED as error:
        raise ValueError(f"{what} is not the manifest of a {format_name}: {error!r}") from error
    if found != (format_name, VERSION):
        expected = f"{format_name!r} version {VERSION}"
        raise ValueError(f"{what} describes {found[0]!r} version {found[1]!r}; expected {expected}")
    try:
        if manifest.pop("sha256", None) != content_sha256(manifest):
            raise ValueError("it does not have its own checksum: damaged or changed")
        return {**manifest["fields"]}, {**manifest["files"]}, manifest.get("written_ns")
    except MALFORMED as error:
        raise ValueError(f"{what} is not the manifest of a {format_name}: {error!r}") from error


def _checksums(parts: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    return {
        name: {"bytes": memoryview(content).nbytes, "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in (parts or {}).items()
    }


def _files(directory: Path) -> dict[str, Path]:
    """Return name (relative, with `/`) and path of every file below a folder, without its manifest.

    Raises:
        ValueError: If one is a link: what it leads to can change after a check, and is not what was saved.
    """
    found: dict[str, Path] = {}
    for folder, subfolders, names in os.walk(directory):
        for name in (*subfolders, *names):
            path = Path(folder, name)
            if path.is_symlink():
                raise ValueError(f"{path} is a link; what is saved lies in its own folder")
        found |= {Path(folder, name).relative_to(directory).as_posix(): Path(folder, name) for name in names}
    found.pop(MANIFEST, None)
    return found
