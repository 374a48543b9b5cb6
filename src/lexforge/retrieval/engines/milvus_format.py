"""How lexforge's vectors, layouts and failures look to Milvus; needs no Milvus itself."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from lexforge.common.similarity import Similarity
from lexforge.retrieval.faiss import HNSW, IVF, Flat
from lexforge.retrieval.vectors import dense_vectors, dense_width, sparse_vectors, sparse_width

Kind = Literal["sparse", "dense"]

RATE_LIMIT = 8  # pymilvus's own code
TRANSIENT = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "INTERNAL", "UNKNOWN"}
_SERVER = re.compile(r"(https?|tcp|unix)://?[^/]")


def lite_file(uri: str) -> str | None:
    """The absolute path of a Milvus Lite file, or None for a server's address.

    Args:
        uri: A file name that ends in `.db`, or `http://host:port`.

    Raises:
        FileNotFoundError: The file's folder does not exist.
        ValueError: Neither a file nor an address, or an address with credentials in it, which a saved index
            would write down.
    """
    if _SERVER.match(uri):
        if "@" in uri:
            raise ValueError(
                "a Milvus address with credentials in it would be saved with the index: pass `token`"
            )
        return None
    if not uri.endswith(".db"):
        raise ValueError(f"uri is {uri!r}; allowed are http://host:port, and names in .db for Milvus Lite")
    if not Path(uri).resolve().parent.is_dir():
        raise FileNotFoundError(f"the folder of {uri} does not exist")
    return os.path.abspath(uri)


def kind_and_width(matrix: Any) -> tuple[Kind, int]:
    """What the first documents make of a collection.

    Raises:
        TypeError: Neither CSR nor an array of floats.
    """
    kind: Kind = "sparse" if sparse.issparse(matrix) else "dense"
    width: Callable[[Any, str], int] = sparse_width if kind == "sparse" else dense_width
    return kind, width(matrix, "documents")


def checked(matrix: Any, what: str, kind: Kind, width: int, similarity: Similarity) -> Any:
    """The matrix as `sparse_vectors` or `dense_vectors` returns it."""
    return (sparse_vectors if kind == "sparse" else dense_vectors)(matrix, what, width, similarity)


def rows_of(
    vectors: sparse.csr_array | NDArray[np.float32], ids: list[str], position: int
) -> list[dict[str, Any]]:
    """Documents as rows of a collection.

    A sparse row without a weight gets one in a column that no query has: servers before 2.4.12 refuse an
    empty vector.

    Args:
        vectors: Checked.
        ids: One a row.
        position: Of the first document.

    Returns:
        `position`, `document`, `weights` (how many numbers the vector has) and `vector` of each.
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
    """The rows of a CSR matrix as `{column: weight}`."""
    columns, weights, bounds = vectors.indices.tolist(), vectors.data.tolist(), vectors.indptr.tolist()
    return [dict(zip(columns[start:end], weights[start:end], strict=True)) for start, end in pairwise(bounds)]


def layout_fields(layout: Flat | HNSW | IVF) -> dict[str, Any]:
    """A layout in JSON types."""
    return {"name": type(layout).__name__, **asdict(layout)}


def layout_from(fields: dict[str, Any]) -> Flat | HNSW | IVF:
    """The layout that `layout_fields` wrote."""
    options = dict(fields)
    return {"Flat": Flat, "HNSW": HNSW, "IVF": IVF}[options.pop("name")](**options)


def index_options(layout: Flat | HNSW | IVF) -> tuple[str, dict[str, int]]:
    """Milvus's name of a dense layout, and its build parameters."""
    if isinstance(layout, HNSW):
        return "HNSW", {"M": layout.neighbours, "efConstruction": layout.ef_construction}
    if isinstance(layout, IVF):
        return "IVF_FLAT", {"nlist": layout.lists}
    return "FLAT", {}


def search_options(layout: Flat | HNSW | IVF, depth: int) -> dict[str, int]:
    """Milvus's search parameters of a layout for `depth` hits (HNSW must look at that many at least)."""
    if isinstance(layout, HNSW):
        return {"ef": max(layout.ef_search, depth)}
    return {"nprobe": layout.probes} if isinstance(layout, IVF) else {}


def is_transient(error: Exception) -> bool:
    """Whether the same request may succeed later: an answer that did not come, or a server that has too much
    to do.

    Args:
        error: A `MilvusException`, whose `code` is a number or gRPC's status, or gRPC's own error, whose
            `code()` is the status.
    """
    code = getattr(error, "code", None)
    status = code() if callable(code) else code
    named = getattr(status, "name", None) in TRANSIENT
    return named or status == RATE_LIMIT or bool(getattr(error, "retriable", False))


def message(error: Exception | None) -> str:
    """What a failure says, on one line."""
    details = getattr(error, "details", None)
    text = getattr(error, "message", None) or (details() if callable(details) else None) or str(error)
    return " ".join(str(text).split())
