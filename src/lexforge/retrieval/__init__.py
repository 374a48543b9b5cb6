"""Indexes of one base class: build, search, save and load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.retrieval.backends import build_exact, find_backend
    from lexforge.retrieval.base import Hits, Index
    from lexforge.retrieval.bm25 import BM25Index
    from lexforge.retrieval.faiss import FaissIndex
    from lexforge.retrieval.fusion import reciprocal_rank_fusion
    from lexforge.retrieval.inverted import InvertedIndex
    from lexforge.retrieval.servers.milvus import MilvusIndex
    from lexforge.retrieval.servers.qdrant import QdrantIndex

__all__ = [
    "BM25Index",
    "FaissIndex",
    "Hits",
    "Index",
    "InvertedIndex",
    "MilvusIndex",
    "QdrantIndex",
    "build_exact",
    "find_backend",
    "reciprocal_rank_fusion",
]

__getattr__, __dir__ = load_when_used(__name__)
