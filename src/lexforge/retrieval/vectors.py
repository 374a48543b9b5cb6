"""Vectors as the indexes take them: checked, in canonical float32, of unit length for the cosine."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lexforge.common.similarity import Similarity

SparseMatrix: TypeAlias = sparse.csr_matrix | sparse.csr_array


def sparse_width(matrix: SparseMatrix, what: str) -> int:
    """Return the number of columns of a matrix that a sparse index takes.

    Raises:
        TypeError: If it is not a 2-dimensional scipy CSR matrix.
    """
    if not sparse.issparse(matrix) or matrix.format != "csr" or matrix.ndim != 2:
        raise TypeError(f"{what} must be a 2-dimensional scipy CSR matrix; received {_described(matrix)}")
    return matrix.shape[1]


def dense_width(matrix: NDArray, what: str) -> int:
    """Return the number of columns of an array that a dense index takes.

    Raises:
        TypeError: If it is not a 2-dimensional array of floats.
    """
    if not isinstance(matrix, np.ndarray) or matrix.ndim != 2 or matrix.dtype.kind != "f":
        raise TypeError(f"{what} must be a 2-dimensional float array; received {_described(matrix)}")
    return matrix.shape[1]


def sparse_vectors(matrix: SparseMatrix, what: str, width: int, similarity: Similarity) -> sparse.csr_array:
    """Return the matrix as sorted float32 CSR without duplicates or zeros; the input is not changed.

    Args:
        matrix: CSR `[N, V]` of real numbers, finite and >= 0 in float32.
        what: `documents` or `queries`, for error messages.
        width: The number V of columns of the index.
        similarity: With `cosine` each row is scaled to unit length; a row of zeros stays as it is.

    Returns:
        CSR `[N, V] float32` in canonical form; every stored weight is > 0.

    Raises:
        TypeError: If the matrix is not a CSR matrix.
        ValueError: If the width differs, the dtype is not a real number, the structure is damaged, or a
            weight is negative or not finite.
    """
    columns = sparse_width(matrix, what)
    if columns != width:
        raise ValueError(f"{what} have {columns} columns; the index has {width}")
    matrix.check_format(full_check=True)
    if matrix.dtype.kind not in "fiu":
        raise ValueError(f"{what} must hold real numbers; received dtype {matrix.dtype}")
    vectors = sparse.csr_array(matrix)
    if vectors.dtype != np.float32:
        with np.errstate(over="ignore"):  # a weight that becomes infinite is refused below
            vectors = vectors.astype(np.float32)
    if not vectors.has_canonical_format:
        vectors = vectors.copy()
        vectors.sum_duplicates()
    _check_weights(vectors, what)  # now, because the cast and the sum of duplicates can exceed float32
    if similarity == "cosine":
        norms = np.sqrt(np.asarray(vectors.astype(np.float64).power(2).sum(axis=1)))  # [N]
        scale = np.repeat(np.where(norms > 0, norms, 1.0), np.diff(vectors.indptr))  # one per stored weight
        data = (vectors.data / scale).astype(np.float32)
        vectors = sparse.csr_array((data, vectors.indices, vectors.indptr), shape=vectors.shape)
    # A stored 0 can be in the input, and scaling can round a small weight to 0.
    if not vectors.data.all():
        vectors = vectors.copy()
        vectors.eliminate_zeros()
    return vectors


def dense_vectors(matrix: NDArray, what: str, width: int, similarity: Similarity) -> NDArray[np.float32]:
    """Return the matrix as contiguous float32; the input is not changed.

    Args:
        matrix: `[N, D]` floats, finite in float32.
        what: `documents` or `queries`, for error messages.
        width: The number D of columns of the index.
        similarity: With `cosine` each row is scaled to unit length; a row of zeros stays as it is.

    Returns:
        Array `[N, D] float32`.

    Raises:
        TypeError: If the matrix is not a 2-dimensional float array.
        ValueError: If the width differs, or a value is not finite.
    """
    columns = dense_width(matrix, what)
    if columns != width:
        raise ValueError(f"{what} have {columns} columns; the index has {width}")
    with np.errstate(over="ignore"):  # a value that becomes infinite is refused below
        vectors = np.ascontiguousarray(matrix, dtype=np.float32)
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(wrong):
        raise ValueError(f"{what} row {wrong[0]} holds a value that is not finite; all values must be finite")
    if similarity == "cosine":
        vectors = unit_rows(vectors).astype(np.float32)
    return vectors


def unit_rows(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return rows `[N, D]` scaled to length 1, in float64; a row of zeros stays as it is."""
    wide = rows.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)  # [N, 1]
    scaled: NDArray[np.float64] = wide / np.where(norms > 0, norms, 1.0)
    return scaled


def _described(matrix: object) -> str:
    """Return the type, dtype and shape of what was given in the place of a matrix."""
    name, dtype, shape = type(matrix).__name__, getattr(matrix, "dtype", None), getattr(matrix, "shape", None)
    return name if dtype is None else f"{name} of dtype {dtype} and shape {shape}"


def _check_weights(matrix: SparseMatrix, what: str) -> None:
    """Refuse a matrix with a stored weight that is negative or not finite."""
    weights = matrix.data
    wrong = np.flatnonzero(~(weights >= 0) | ~np.isfinite(weights))
    if len(wrong):
        row = int(np.searchsorted(matrix.indptr, wrong[0], side="right")) - 1
        raise ValueError(
            f"{what} row {row}, column {matrix.indices[wrong[0]]}: weight {weights[wrong[0]]}; "
            "weights must be finite and >= 0"
        )
