"""Vectors of texts in a file that also names what they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from lexforge.storage.tensors import read_tensors, write_tensors

FORMAT = "lexforge-vectors-2"
MOST_COLUMNS = 2**22  # several times the largest vocabulary; an index takes some hundred bytes per column


def write_vectors(path: Path, vectors: Any, owner: str, **arrays: NDArray[Any]) -> None:
    """Write a file of vectors; equal input gives equal bytes.

    Args:
        path: The file; it is written beside its place and renamed.
        vectors: CSR `[N, V] float32` or an array `[N, D] float32`.
        owner: The name of what the vectors belong to; `read_vectors` needs the same name.
        arrays: Further arrays to store in the file, by name.
    """
    fields: dict[str, Any] = {"owner": owner}
    if isinstance(vectors, np.ndarray):
        arrays |= {"dense": vectors}
    else:
        vectors.sum_duplicates()  # also sorts the columns of each row, so that equal vectors give equal bytes
        fields["width"] = int(vectors.shape[1])
        arrays |= {
            "data": vectors.data.astype(np.float32, copy=False),
            "indices": vectors.indices.astype(np.int32),
            "indptr": vectors.indptr.astype(np.int64),
        }
    tensors = {
        name: torch.from_numpy(np.require(array, requirements=["C", "W"])) for name, array in arrays.items()
    }
    write_tensors(path, FORMAT, fields, tensors)


def read_vectors(path: Path, owner: str) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Read a file of vectors.

    Args:
        path: A file that `write_vectors` wrote.
        owner: The name that was given to `write_vectors`.

    Returns:
        The vectors, and all arrays of the file by name.

    Raises:
        ValueError: If `read_tensors` refuses the file, or it belongs to something else, or declares more than
            `MOST_COLUMNS` columns. The message does not name the file.
    """
    fields, tensors = read_tensors(path, FORMAT)
    if fields.get("owner") != owner:
        raise ValueError(f"it must belong to {owner!r}; it belongs to {fields.get('owner')!r}")
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    if "dense" in arrays:
        return arrays["dense"], arrays
    if (width := int(fields["width"])) > MOST_COLUMNS:  # columns that no row uses take no bytes in the file
        raise ValueError(f"it declares {width:,} columns; at most {MOST_COLUMNS:,} are read")
    parts = (arrays["data"], arrays["indices"], arrays["indptr"])
    return sparse.csr_array(parts, shape=(len(arrays["indptr"]) - 1, width)), arrays
