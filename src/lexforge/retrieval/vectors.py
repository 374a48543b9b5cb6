"""Vectors as the indexes take them: checked, canonical float32, of unit length for cosine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lexforge.common.similarity import Similarity

Matrix = sparse.csr_matrix | sparse.csr_array


def sparse_width(matrix: Matrix, what: str) -> int:
    """The number of columns of a matrix that a sparse index takes.

    Raises:
        TypeError: It is not a 2-dimensional scipy CSR matrix.
    """
    if not sparse.issparse(matrix) or matrix.format != "csr" or matrix.ndim != 2:
        raise TypeError(f"{what} must be a 2-dimensional scipy CSR matrix, not {type(matrix).__name__}")
    return matrix.shape[1]


def dense_width(matrix: NDArray, what: str) -> int:
    """The number of columns of an array that a dense index takes.

    Raises:
        TypeError: It is not a 2-dimensional array of floats.
    """
    if not isinstance(matrix, np.ndarray) or matrix.ndim != 2 or matrix.dtype.kind != "f":
        raise TypeError(f"{what} must be a 2-dimensional float array, not {type(matrix).__name__}")
    return matrix.shape[1]


def sparse_vectors(matrix: Matrix, what: str, width: int, similarity: Similarity) -> sparse.csr_array:
    """The matrix as sorted float32 CSR without duplicates or zeros; the input stays as it is.

    Args:
        matrix: CSR `[N, V]` real numbers, finite and >= 0 in float32.
        what: `documents` or `queries`, for messages.
        width: The index's number of columns.
        similarity: With `cosine` each row is scaled to unit length; a row of zeros stays.

    Returns:
        CSR `[N, V] float32`, canonical, every stored weight > 0.

    Raises:
        TypeError: The matrix is no CSR matrix.
        ValueError: Another width, a dtype that is no real number, a damaged structure, or a weight that is
            negative or not finite.
    """
    columns = sparse_width(matrix, what)
    if columns != width:
        raise ValueError(f"{what} have {columns} columns; the index has {width}")
    matrix.check_format(full_check=True)
    if matrix.dtype.kind not in "fiu":
        raise ValueError(f"{what} have dtype {matrix.dtype}; allowed are real numbers")
    _check_weights(matrix, what)
    vectors = sparse.csr_array(matrix)
    if vectors.dtype != np.float32:
        with np.errstate(over="ignore"):  # infinity is refused just below
            vectors = vectors.astype(np.float32)
    if not vectors.has_canonical_format:
        vectors = vectors.copy()
        vectors.sum_duplicates()
    _check_weights(vectors, what)
    if similarity == "cosine":
        norms = np.sqrt(np.asarray(vectors.astype(np.float64).power(2).sum(axis=1)))
        scale = np.repeat(np.where(norms > 0, norms, 1.0), np.diff(vectors.indptr))
        data = (vectors.data / scale).astype(np.float32)
        vectors = sparse.csr_array((data, vectors.indices, vectors.indptr), shape=vectors.shape)
    if not vectors.data.all():
        vectors = vectors.copy()
        vectors.eliminate_zeros()
    return vectors


def dense_vectors(matrix: NDArray, what: str, width: int, similarity: Similarity) -> NDArray[np.float32]:
    """The matrix as contiguous float32; the input stays as it is.

    Args:
        matrix: `[N, D]` floats, finite in float32.
        what: `documents` or `queries`, for messages.
        width: The index's number of columns.
        similarity: With `cosine` each row is scaled to unit length; a row of zeros stays.

    Returns:
        Array `[N, D] float32`.

    Raises:
        TypeError: The matrix is no 2-dimensional float array.
        ValueError: Another width, or a value that is not finite.
    """
    columns = dense_width(matrix, what)
    if columns != width:
        raise ValueError(f"{what} have {columns} columns; the index has {width}")
    with np.errstate(over="ignore"):  # infinity is refused just below
        vectors = np.ascontiguousarray(matrix, dtype=np.float32)
    wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(wrong):
        raise ValueError(f"{what} row {wrong[0]} holds a value that is not finite")
    if similarity == "cosine":
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        vectors = (vectors / np.where(norms > 0, norms, 1.0)).astype(np.float32)
    return vectors


def _check_weights(matrix: Matrix, what: str) -> None:
    """Refuse negative and non-finite weights, in the dtype given and in float32."""
    weights = matrix.data
    wrong = np.flatnonzero(~(weights >= 0) | ~np.isfinite(weights))
    if len(wrong):
        row = int(np.searchsorted(matrix.indptr, wrong[0], side="right")) - 1
        raise ValueError(
            f"{what} row {row}, column {matrix.indices[wrong[0]]}: weight {weights[wrong[0]]}; "
            "weights must be finite and >= 0"
        )
