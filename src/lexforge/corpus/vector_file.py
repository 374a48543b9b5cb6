"""Vectors of texts in a safetensors file that carries a checksum, and the name of what it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from scipy import sparse

from lexforge.common.manifest import METADATA, pack_manifest, unpack_manifest

FORMAT = "lexforge-vectors"


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
    return save(tensors, metadata={METADATA: pack_manifest(FORMAT, {"owner": owner}, _parts(tensors))})


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
            manifest = (file.metadata() or {})[METADATA]
        found = unpack_manifest(manifest, FORMAT, _parts(tensors))
        if found != {"owner": owner}:
            raise ValueError(f"it belongs to {found.get('owner')!r}, not to {owner!r}")
        vectors = tensors.get("dense")
        if vectors is None:
            shape = (len(tensors["indptr"]) - 1, int(tensors["width"][0]))
            vectors = sparse.csr_array(
                (tensors["data"], tensors["indices"].copy(), tensors["indptr"]), shape=shape
            )
    except (SafetensorError, ValueError, TypeError, LookupError, OSError) as error:
        raise ValueError(str(error)) from error
    return vectors, tensors


def _parts(tensors: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The arrays under names that say their dtype and shape too, which are no part of their bytes."""
    return {
        f"{name} {array.dtype.str} {array.shape}": array.reshape(-1).view(np.uint8)
        for name, array in tensors.items()
    }
