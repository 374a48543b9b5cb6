"""The names of the engines that vectors are exported for, read by a command line before it loads torch."""

from __future__ import annotations

from typing import Literal, TypeAlias

VectorTargetName: TypeAlias = Literal[
    "anserini",
    "ciff",
    "opensearch",
    "opensearch-sparse-vector",
    "elasticsearch",
    "qdrant",
    "vespa",
    "pgvector",
    "milvus",
]
