"""Corpora encoded in blocks, files of vectors, stored indexes, searches with their terms, labels of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.corpus.changes import Change, change_index
    from lexforge.corpus.encoded_corpus import EncodedCorpus, encode_corpus
    from lexforge.corpus.encoding import (
        CorpusEncoder,
        Vectors,
        active_document_frequency,
        encode,
        encoding_speed,
        join_vectors,
        vector_type,
    )
    from lexforge.corpus.label_classifier import LabelClassifier, label_scores, load_label_classifier
    from lexforge.corpus.own_tokens import count_tokens, token_limit, unknown_share, unknown_shares
    from lexforge.corpus.search import (
        Found,
        MatchedTerm,
        QueryResult,
        Searcher,
        load_encoder_of,
        named_terms,
        open_searcher,
        shared_weights,
    )
    from lexforge.corpus.stored_index import Source, build_index, index_passages, open_index, read_source

__all__ = [
    "Change",
    "CorpusEncoder",
    "EncodedCorpus",
    "Found",
    "LabelClassifier",
    "MatchedTerm",
    "QueryResult",
    "Searcher",
    "Source",
    "Vectors",
    "active_document_frequency",
    "build_index",
    "change_index",
    "count_tokens",
    "encode",
    "encode_corpus",
    "encoding_speed",
    "index_passages",
    "join_vectors",
    "label_scores",
    "load_encoder_of",
    "load_label_classifier",
    "named_terms",
    "open_index",
    "open_searcher",
    "read_source",
    "shared_weights",
    "token_limit",
    "unknown_share",
    "unknown_shares",
    "vector_type",
]

__getattr__, __dir__ = load_when_used(__name__)
