"""Corpora encoded in blocks, files of vectors, stored indexes, and searches with the terms that matched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.corpus.active_terms import active_document_frequency
    from lexforge.corpus.encoded_corpus import EncodedCorpus, encode_corpus
    from lexforge.corpus.encoding import CorpusEncoder, Vectors, encode, join_vectors, vector_type
    from lexforge.corpus.search import Found, Searcher, matched_terms, named_terms
    from lexforge.corpus.stored_index import Source, build_index, open_index

__all__ = [
    "CorpusEncoder",
    "EncodedCorpus",
    "Found",
    "Searcher",
    "Source",
    "Vectors",
    "active_document_frequency",
    "build_index",
    "encode",
    "encode_corpus",
    "join_vectors",
    "matched_terms",
    "named_terms",
    "open_index",
    "vector_type",
]

__getattr__, __dir__ = load_when_used(__name__)
