"""Search texts in a stored index, and show each document found with its text and the terms of its score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

from scipy import sparse
from sentence_transformers import SparseEncoder
from sentence_transformers.base.model import BaseModel

from lexforge.common.types import Passage, check_texts
from lexforge.corpus.encoding import Vectors, encode
from lexforge.corpus.own_tokens import own_tokens
from lexforge.corpus.stored_index import Source, open_index
from lexforge.models.fingerprint import fingerprint
from lexforge.models.load import check_encoder, load_encoder
from lexforge.models.structure import name_columns
from lexforge.retrieval.base import Index
from lexforge.retrieval.bm25 import BM25Index
from lexforge.retrieval.fusion import reciprocal_rank_fusion
from lexforge.retrieval.inverted import InvertedIndex
from lexforge.retrieval.vectors import sparse_vectors
from lexforge.settings import IndexName

FUSED_DEPTH = 100  # hits of each ranking that are fused


@dataclass(frozen=True)
class MatchedTerm:
    """A term of a query, or one that a query shares with a document.

    Args:
        term: The name of the term, as the tokenizer spells it.
        score: Its weight in the query, or what it adds to the score of the document.
        own: Whether it is a token of the query itself; otherwise the model has added it.
    """

    term: str
    score: float
    own: bool


@dataclass(frozen=True)
class Found:
    """A hit as a person reads it.

    Args:
        id: Id of the passage.
        score: Score of the passage in the index, or of its ranks where those of BM25 are fused with them.
        passage: The passage; None if the index keeps no texts.
        terms: For a sparse model, the terms that query and document share and what each adds to the score of
            the index, the strongest first; together they are that score, up to rounding. Empty for a dense
            model, and for an index on a server that keeps no texts.
    """

    id: str
    score: float
    passage: Passage | None
    terms: list[MatchedTerm]


class QueryResult(NamedTuple):
    """What a search tells of one query.

    Attributes:
        terms: The active terms of the query, the largest weight first; none for a dense model.
        hits: The hits, best first.
    """

    terms: list[MatchedTerm]
    hits: list[Found]


class Searcher:
    """Searches an index by the model that made it.

    Args:
        index: The index of the documents' vectors.
        model: The encoder.
        source: What the index was made of, from `open_index`.
        passages: Passage id -> passage; None if there are no texts to show.
        bm25: An index of the same passages, whose ranks are fused with those of the vectors; None fuses none.

    Raises:
        ValueError: If the model is not the one that made the index.
    """

    def __init__(
        self,
        index: Index,
        model: BaseModel,
        source: Source,
        passages: Mapping[str, Passage] | None = None,
        bm25: BM25Index | None = None,
    ) -> None:
        if fingerprint(model) != source.fingerprint:
            raise ValueError(
                f"the model must be the one that made the index, {source.model} at {source.max_seq_length} "
                f"tokens; received a model (at {model.max_seq_length} tokens) with other weights or "
                "settings. Name the folder where that one is now, or make the index again"
            )
        self.index, self.model, self.source, self.passages = index, model, source, passages
        self._bm25 = bm25

    def __len__(self) -> int:
        """Return the number of passages."""
        return len(self.index)

    def answer(self, queries: Sequence[str], k: int) -> list[QueryResult]:
        """Find the k best passages of each query, and tell what the model reads in the query.

        With BM25, the best `FUSED_DEPTH` hits of both rankings are fused, so fewer hits are the first of
        more. A larger k fuses k hits of each, and then the order may differ from that of another k.

        Args:
            queries: At least one text, none of them blank.
            k: Number of hits wanted per query, at least 1.

        Returns:
            The terms and the hits of each query.

        Raises:
            TypeError: If `queries` is a single string instead of a list.
            ValueError: If there is no query, a query is blank, or k is below 1.
        """
        check_texts(queries)
        for number, text in enumerate(queries, start=1):
            if not text.strip():
                raise ValueError(f"a query must not be blank; received {text!r} as query {number}")
        vectors = encode(self.model, queries, "query")
        if self._bm25 is None:
            hits = self.index.search(vectors, k)
        else:
            depth = max(k, FUSED_DEPTH)
            both = [self.index.search(vectors, depth), self._bm25.search(list(queries), depth)]
            hits = reciprocal_rank_fusion(both, k)
        answers = []
        for row, (ids, scores) in enumerate(zip(hits.ids, hits.scores, strict=True)):
            query, vector = queries[row], vectors[[row]]
            own = self._named(query, vector)[0] if isinstance(self.model, SparseEncoder) else []
            terms = self._terms(query, vector, ids)
            passages = [None if self.passages is None else self.passages[key] for key in ids]
            found = zip(ids, scores.tolist(), passages, terms, strict=True)
            answers.append(QueryResult(own, [Found(*entry) for entry in found]))
        return answers

    def _terms(self, query: str, vector: Vectors, ids: list[str]) -> list[list[MatchedTerm]]:
        """Return the terms that a query shares with each of some documents."""
        if not ids or not isinstance(self.model, SparseEncoder):
            return [[] for _ in ids]
        if isinstance(self.index, InvertedIndex):
            documents = self.index.vectors(ids)  # [n, V]
        elif self.passages is not None:  # a server returns no vectors
            documents = encode(self.model, [self.passages[key].joined for key in ids], "document")
        else:
            return [[] for _ in ids]
        return self._named(query, shared_weights(self.model, vector, documents))

    def _named(self, query: str, weights: Vectors) -> list[list[MatchedTerm]]:
        """Name the terms of each row, `[n, V]`, and say which of them the query itself holds."""
        model = cast("SparseEncoder", self.model)
        own = set(own_tokens(model, query))
        return [
            [MatchedTerm(term, value, term in own) for term, value in row]
            for row in named_terms(model, weights)
        ]


def open_searcher(
    directory: str | Path,
    model: str | None = None,
    *,
    hybrid: bool = False,
    verify: bool = False,
    uri: str | None = None,
    tokens: Mapping[IndexName, str] | None = None,
) -> Searcher:
    """Open an index on the disk together with the encoder that made it.

    Args:
        directory: The directory that `build_index` wrote.
        model: The encoder, as a folder or a hub name; None takes the name under which the corpus was encoded,
            also where the folders of index and model were moved together.
        hybrid: Whether the ranks of BM25 are fused with those of the index; it is built here, of the texts.
        verify: Compare every file with its checksum, as for `open_index`.
        uri: The address of the server that keeps the vectors.
        tokens: Name of an index -> credentials for its server.

    Returns:
        The searcher.

    Raises:
        ConnectionError: If the server of the index does not answer.
        FileNotFoundError: If the directory holds no index, or there is no such model.
        ValueError: If a file is damaged, the model is not the one that made the index, or BM25 is wanted and
            the index keeps no texts.
    """
    index, source, passages = open_index(directory, verify, uri=uri, tokens=tokens)
    bm25 = None
    if hybrid:
        if passages is None:
            raise ValueError(
                f"BM25 needs the texts, and {directory} keeps none; make it again with --documents"
            )
        bm25 = BM25Index.build([passage.joined for passage in passages.values()], list(passages))
    return Searcher(index, load_encoder_of(directory, source, model), source, passages, bm25)


def load_encoder_of(directory: str | Path, source: Source, model: str | None = None) -> BaseModel:
    """Load the encoder that made an index.

    Args:
        directory: The directory of the index.
        source: What the index was made of.
        model: The folder or hub name of the encoder; None takes the one that the index recorded, or, where
            that folder is gone, the one of its name beside the index: both may have been moved together.

    Returns:
        The encoder.

    Raises:
        FileNotFoundError: If there is no such model.
        ValueError: If `load_encoder` refuses it.
    """
    name, beside = model or source.model, Path(directory).resolve().parent / Path(source.model).name
    if model is None and Path(name).is_absolute() and not Path(name).exists() and beside.is_dir():
        name = str(beside)
    try:
        return load_encoder(name, source.max_seq_length)
    except FileNotFoundError as error:
        if model is None:
            error.add_note(f"--model (model= in Python) names where the model of {directory} is now")
        raise


def shared_weights(model: SparseEncoder, query: Vectors, documents: Vectors) -> sparse.csr_array:
    """Return what each term adds to the score of each document.

    Args:
        model: The encoder, whose similarity says how vectors are compared.
        query: The vector of the query, CSR `[1, V]`.
        documents: The vectors of n documents, CSR `[n, V]`, n >= 1.

    Returns:
        CSR `[n, V]`, whose rows sum to the scores.
    """
    similarity, width = check_encoder(model), documents.shape[1]
    left = sparse_vectors(query, "queries", width, similarity)
    right = sparse_vectors(documents, "documents", width, similarity)
    return sparse.csr_array(right.multiply(left))


def named_terms(model: SparseEncoder, vectors: Vectors) -> list[list[tuple[str, float]]]:
    """Return the active terms of vectors by their names.

    Args:
        model: The encoder, which names the terms.
        vectors: CSR `[n, V]`, n >= 1.

    Returns:
        One list of (term, weight) per row, the largest weight first.
    """
    rows = sparse.csr_array(vectors)  # [n, V]
    pairs = list(zip(name_columns(model, rows.indices.tolist()), rows.data.tolist(), strict=True))
    return [
        sorted((pair for pair in pairs[start:end] if pair[1]), key=lambda pair: -pair[1])
        for start, end in pairwise(rows.indptr.tolist())
    ]
