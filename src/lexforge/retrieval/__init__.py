"""Indexes behind one protocol: build, search, save, load."""

from lexforge.common.similarity import Similarity
from lexforge.retrieval.base import Hits, Index
from lexforge.retrieval.bm25 import BM25Index
from lexforge.retrieval.engines.milvus import MilvusIndex
from lexforge.retrieval.faiss import HNSW, IVF, FaissIndex, Flat
from lexforge.retrieval.inverted import InvertedIndex
from lexforge.retrieval.seismic import SeismicIndex, SeismicSettings

__all__ = [
    "HNSW",
    "IVF",
    "BM25Index",
    "FaissIndex",
    "Flat",
    "Hits",
    "Index",
    "InvertedIndex",
    "MilvusIndex",
    "SeismicIndex",
    "SeismicSettings",
    "Similarity",
]
