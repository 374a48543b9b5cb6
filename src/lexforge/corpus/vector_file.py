"""Vectors of texts in a safetensors file that carries a checksum, and the name of what it belongs to."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from scipy import sparse

SEAL = "block"


def pack(vectors: Any, owner: str, **arrays: NDArray[Any]) -> bytes:
    """The bytes of a file of vectors; equal input gives equal bytes.

    Args:
        vectors: CSR `[N, V] float32` or an array `[N, D] float32`.
        owner: What the vectors belong to; only who knows it reads them.
        arrays: More to keep beside them.

    Returns:
        What `unpack` reads.
    """
    if isinstance(vectors, np.ndarray):
        tensors: dict[str, NDArray[Any]] = {"dense": np.ascontiguousarray(vectors)}
    else:
        vectors.sum_duplicates()  # sorts the columns of a row, so that equal vectors are equal bytes
        tensors = {
            "data": vectors.data.astype(np.float32, copy=False),
            "indices": vectors.indices.astype(np.int32),
            "indptr": vectors.indptr.astype(np.int64),
            "width": np.array([vectors.shape[1]], np.int64),
        }
    tensors |= arrays
    # one entry: safetensors orders several by a random hash
    return save(tensors, metadata={SEAL: _digest(tensors, owner)})


def write_whole(path: Path, data: bytes, rank: int = 0) -> None:
    """Write beside and rename: a name that exists is whole, also where several processes write it.

    Args:
        path: The file; what it held is replaced.
        data: Its bytes.
        rank: This process; the file beside is called `<name>.<process id>-<random>.<rank>.partial`.
    """
    while True:
        beside = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(8)}.{rank}.partial")
        try:
            beside.write_bytes(data)
            os.replace(beside, path)
            return
        except OSError as error:  # a process that starts may take the file for a leftover: written again
            if error.errno not in (errno.ENOENT, errno.ESTALE) or not path.parent.is_dir():
                raise


def unpack(path: Path, owner: str) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Read a file of vectors.

    Args:
        path: Holds what `pack` returned.
        owner: As given to `pack`.

    Returns:
        The vectors, and all arrays by name.

    Raises:
        ValueError: The file is a link, cut, altered, or belongs to something else; the message says only why.
    """
    try:
        if path.is_symlink():
            raise ValueError("it is a link")
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            seal = (file.metadata() or {}).get(SEAL)
        if seal != _digest(tensors, owner):
            raise ValueError("its checksum does not fit")
        vectors = tensors.get("dense")
        if vectors is None:
            shape = (len(tensors["indptr"]) - 1, int(tensors["width"][0]))
            vectors = sparse.csr_array(
                (tensors["data"], tensors["indices"].copy(), tensors["indptr"]), shape=shape
            )
    except (SafetensorError, ValueError, TypeError, LookupError, OSError) as error:
        raise ValueError(str(error)) from error
    return vectors, tensors


def _digest(tensors: Mapping[str, NDArray[Any]], owner: str) -> str:
    """Digest of the arrays and of what they belong to."""
    digest = hashlib.sha256(owner.encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f" {name} {array.dtype.str} {array.shape} ".encode())
        digest.update(array.data)
    return digest.hexdigest()
