"""How vectors and failures are written for Milvus; this file does not need Milvus itself."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lexforge.retrieval.servers.server import check_address
from lexforge.retrieval.vectors import dense_width, sparse_width
from lexforge.settings import VectorType

CONNECT_FAILED = 2  # pymilvus's own code of an address at which no server answers
RATE_LIMIT = 8  # pymilvus's own code of an error for too many requests
TRANSIENT = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "INTERNAL", "UNKNOWN"}
_SERVER = re.compile(r"(https?|tcp|unix)://?[^/]")


def lite_file(uri: str) -> str | None:
    """Return the absolute path of a Milvus Lite file, or None for the address of a server.

    Args:
        uri: A file name that ends in `.db`, or `http://host:port`.

    Raises:
        FileNotFoundError: If the folder of the file does not exist.
        ValueError: If `uri` is neither, or an address that contains credentials, which a saved index would
            write down.
    """
    if _SERVER.match(uri):
        check_address(uri, "Milvus", "http://host:19530")
        return None
    if not uri.endswith(".db"):
        raise ValueError(
            f"uri must be http://host:port, or a file name that ends in .db (Milvus Lite); received {uri!r}"
        )
    if not Path(uri).resolve().parent.is_dir():
        raise FileNotFoundError(f"the folder of {uri} does not exist")
    return os.path.abspath(uri)


def type_and_width(matrix: Any, what: str) -> tuple[VectorType, int]:
    """Return the type and the width of the vectors of a collection that these are the first of.

    Raises:
        TypeError: If they are neither CSR nor a 2-dimensional array of floats.
    """
    vector_type: VectorType = "sparse" if sparse.issparse(matrix) else "dense"
    return vector_type, sparse_width(matrix, what) if vector_type == "sparse" else dense_width(matrix, what)


def collection_rows(
    vectors: sparse.csr_array | NDArray[np.float32], ids: list[str], position: int
) -> list[dict[str, Any]]:
    """Return documents as rows of a collection.

    A sparse row without a weight gets one in a column that no query has, because servers before 2.4.12 refuse
    an empty vector.

    Args:
        vectors: `[N, width]`, as `ServerIndex` checks them.
        ids: The N ids of the documents.
        position: The position of the first document.

    Returns:
        One dictionary per document with its `position`, its id `document`, the `vector` and the number of
        stored numbers in it, `weights`.
    """
    if isinstance(vectors, np.ndarray):
        values: list[Any] = list(vectors)
        counts = [vectors.shape[1]] * len(vectors)
    else:
        values = [terms or {vectors.shape[1]: 1.0} for terms in dictionaries(vectors)]
        counts = np.diff(vectors.indptr).tolist()
    return [
        {"position": position + i, "document": name, "weights": count, "vector": value}
        for i, (name, count, value) in enumerate(zip(ids, counts, values, strict=True))
    ]


def dictionaries(vectors: sparse.csr_array) -> list[dict[int, float]]:
    """Return the rows of a CSR matrix as `{column: weight}`."""
    columns, weights, bounds = vectors.indices.tolist(), vectors.data.tolist(), vectors.indptr.tolist()
    return [dict(zip(columns[start:end], weights[start:end], strict=True)) for start, end in pairwise(bounds)]


def is_transient(error: Exception) -> bool:
    """Return whether the same request may succeed later, because no answer came or the server is overloaded.

    Args:
        error: A `MilvusException`, whose attribute `code` is a number or a status of gRPC, or an error of
            gRPC, whose method `code()` returns the status.
    """
    code = getattr(error, "code", None)
    status = code() if callable(code) else code
    named = getattr(status, "name", None) in TRANSIENT
    return named or status == RATE_LIMIT or bool(getattr(error, "retriable", False))


def message(error: Exception | None) -> str:
    """Return the message of a failure on one line."""
    details = getattr(error, "details", None)
    text = getattr(error, "message", None) or (details() if callable(details) else None) or str(error)
    return " ".join(str(text).split())
