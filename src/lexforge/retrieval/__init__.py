"""Indexes behind one protocol: build, search, save, load."""

from lexforge.retrieval.base import Hits, Index, Similarity
from lexforge.retrieval.bm25 import BM25Index
from lexforge.retrieval.faiss import HNSW, IVF, FaissIndex, Flat
from lexforge.retrieval.inverted import InvertedIndex
from lexforge.retrieval.milvus import MilvusIndex
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
