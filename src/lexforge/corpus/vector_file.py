"""Vectors of texts in a safetensors file that also holds checksums and the name of what it belongs to."""

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
MOST_COLUMNS = 2**22  # several times the largest vocabulary; an index takes some hundred bytes per column


def pack(vectors: Any, owner: str, **arrays: NDArray[Any]) -> bytes:
    """Return the bytes of a file of vectors; equal input gives equal bytes.

    Args:
        vectors: CSR `[N, V] float32` or an array `[N, D] float32`.
        owner: The name of what the vectors belong to; `unpack` needs the same name.
        arrays: Further arrays to store in the file, by name.

    Returns:
        The bytes, which `unpack` reads.
    """
    if isinstance(vectors, np.ndarray):
        tensors: dict[str, NDArray[Any]] = {"dense": np.ascontiguousarray(vectors)}
    else:
        vectors.sum_duplicates()  # also sorts the columns of each row, so that equal vectors give equal bytes
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
        path: A file with the bytes that `pack` returned.
        owner: The name that was given to `pack`.

    Returns:
        The vectors, and all arrays of the file by name.

    Raises:
        ValueError: If the file is a link, cut, altered, or belongs to something else, or declares more than
            `MOST_COLUMNS` columns. The message does not name the file.
    """
    try:
        if path.is_symlink():
            raise ValueError("it is a link")
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            manifest = (file.metadata() or {}).get(METADATA)
        found = unpack_manifest(manifest, FORMAT, _parts(tensors))
        if found != {"owner": owner}:
            raise ValueError(f"it must belong to {owner!r}; it belongs to {found.get('owner')!r}")
        vectors = tensors.get("dense")
        if vectors is None:
            rows, width = len(tensors["indptr"]) - 1, int(tensors["width"][0])
            if width > MOST_COLUMNS:  # the columns that no row uses take no bytes in the file
                raise ValueError(f"it declares {width:,} columns; at most {MOST_COLUMNS:,} are read")
            vectors = sparse.csr_array(
                (tensors["data"], tensors["indices"].copy(), tensors["indptr"]), shape=(rows, width)
            )
    except (SafetensorError, ValueError, TypeError, LookupError, OSError) as error:
        raise ValueError(str(error)) from error
    return vectors, tensors


def _parts(tensors: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the bytes of each array under a name with dtype and shape, so that these are checked too."""
    return {
        f"{name} {array.dtype.str} {array.shape}": array.reshape(-1).view(np.uint8)
        for name, array in tensors.items()
    }
