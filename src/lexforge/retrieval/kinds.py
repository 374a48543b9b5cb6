"""The names of indexes and of vectors, which a command line reads before it loads any index."""

from __future__ import annotations

from typing import Literal, TypeAlias

IndexKind: TypeAlias = Literal["inverted", "faiss-flat", "faiss-hnsw", "faiss-ivf", "milvus", "qdrant"]
"""The indexes that a command line can name."""

VectorKind: TypeAlias = Literal["sparse", "dense"]
"""The two kinds of vectors that an encoder gives."""
