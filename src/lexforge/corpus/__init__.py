"""Corpora encoded in blocks, files of vectors, stored indexes, and searches with the terms that matched."""

from lexforge.corpus.encoded_corpus import EncodedCorpus
from lexforge.corpus.encoding import CorpusEncoder, Vectors, encode

__all__ = ["CorpusEncoder", "EncodedCorpus", "Vectors", "encode"]
