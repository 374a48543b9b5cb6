"""The one list of indexes that have a name: the class, and the settings that belong to the name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scipy import sparse

from lexforge.common.similarity import Similarity
from lexforge.retrieval.base import Index
from lexforge.retrieval.faiss import FaissIndex
from lexforge.retrieval.inverted import InvertedIndex
from lexforge.retrieval.servers.milvus import MilvusIndex
from lexforge.retrieval.servers.qdrant import QdrantIndex
from lexforge.retrieval.servers.server import ServerIndex
from lexforge.settings import IndexName, VectorType


@dataclass(frozen=True)
class Backend:
    """What a name of `IndexName` stands for.

    Args:
        index: The class.
        settings: Arguments of its `build` that belong to the name, such as the layout.
    """

    index: type[Index]
    settings: Mapping[str, Any] = field(default_factory=dict)


BACKENDS: dict[IndexName, Backend] = {
    "inverted": Backend(InvertedIndex),
    "faiss-flat": Backend(FaissIndex),
    "faiss-hnsw": Backend(FaissIndex, {"layout": "HNSW32", "parameters": "efConstruction=200,efSearch=128"}),
    "faiss-ivf": Backend(FaissIndex, {"layout": "IVF256,Flat", "parameters": "nprobe=16"}),
    "milvus": Backend(MilvusIndex),
    "qdrant": Backend(QdrantIndex),
}


def find_backend(name: str | None, vectors: VectorType, options: Mapping[str, Any]) -> Backend:
    """Look up a backend, and refuse, before any work, an index that cannot be built.

    Args:
        name: A name of `IndexName`.
        vectors: The type of vectors that the index is to hold.
        options: The options that the caller gives, by name.

    Returns:
        The backend.

    Raises:
        ConnectionError: If the server of the index does not answer.
        ImportError: If the client of the server is not installed.
        ValueError: If the name is unknown, the index does not hold these vectors, it takes no options and
            there are some, or a server has no `uri`.
    """
    if name not in BACKENDS:
        raise ValueError(f"the index must be one of {', '.join(BACKENDS)}; received {name!r}")
    backend = BACKENDS[name]
    if vectors not in backend.index.holds:
        allowed = [name for name, other in BACKENDS.items() if vectors in other.index.holds]
        raise ValueError(
            f"the index {name!r} does not hold {vectors} vectors; indexes that do are {', '.join(allowed)}"
        )
    if issubclass(backend.index, ServerIndex):
        if "uri" not in options:
            given = ", ".join(options) or "no option"
            raise ValueError(f"the index {name!r} needs the option uri (--uri); received {given}")
        backend.index.check_available(**options)
    elif options:
        raise ValueError(f"the index {name!r} takes no options; received {', '.join(options)}")
    return backend


def exact_name(vectors: VectorType) -> IndexName:
    """Return the name of the exact index in memory that holds vectors of a type."""
    return "inverted" if vectors == "sparse" else "faiss-flat"


def build_exact(documents: Any, ids: list[str], similarity: Similarity) -> InvertedIndex | FaissIndex:
    """Build the exact index of vectors: inverted for sparse ones, flat FAISS for dense ones.

    Args:
        documents: CSR `[N, V]` with finite weights >= 0, or an array `[N, D]` of finite floats.
        ids: N distinct strings.
        similarity: `dot` or `cosine`.

    Returns:
        The index.

    Raises:
        TypeError: If the documents are neither a CSR matrix nor a 2-dimensional float array.
        ValueError: If `InvertedIndex.build` or `FaissIndex.build` refuses the documents or ids.
    """
    exact: type[InvertedIndex | FaissIndex] = InvertedIndex if sparse.issparse(documents) else FaissIndex
    return exact.build(documents, ids, similarity)
