"""Search texts in a stored index, and show each document found with its text and the terms of its score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from scipy import sparse
from sentence_transformers import SparseEncoder
from sentence_transformers.base.model import BaseModel

from lexforge.corpus.encoding import Vectors, encode
from lexforge.corpus.stored_index import Source
from lexforge.models.fingerprint import fingerprint, text_digest
from lexforge.models.load import check_encoder
from lexforge.retrieval.base import Index
from lexforge.retrieval.vectors import sparse_vectors


@dataclass(frozen=True)
class Found:
    """A hit as a person reads it.

    Args:
        id: Id of the document.
        score: Score of the document in the index.
        text: Text of the document.
        terms: For a sparse model, the terms that query and document share and what each adds to the score,
            the strongest first; together they are the score, up to rounding. Empty for a dense model.
    """

    id: str
    score: float
    text: str
    terms: list[tuple[str, float]]


class Searcher:
    """Searches an index by the model that made it.

    Args:
        index: The index of the documents' vectors.
        model: The encoder.
        corpus: `{document id: text}`, as it was encoded.
        source: What the index was made of, from `open_index`.

    Raises:
        ValueError: If the model or the corpus is not the one that the index was made of.
    """

    def __init__(self, index: Index, model: BaseModel, corpus: Mapping[str, str], source: Source) -> None:
        if fingerprint(model) != source.fingerprint:
            raise ValueError(
                f"the model must be the one that made the index, {source.model} at {source.max_seq_length} "
                f"tokens; received a model (at {model.max_seq_length} tokens) with other weights or settings"
            )
        if text_digest(part for pair in corpus.items() for part in pair) != source.corpus:
            raise ValueError(
                f"the corpus must be the one that the index was made of; received another of {len(corpus)} "
                "documents"
            )
        self.index, self.model, self.corpus = index, model, corpus
        check_encoder(model)

    def search(self, queries: Sequence[str], k: int) -> list[list[Found]]:
        """Find the k best documents of each query.

        Args:
            queries: At least one text, none of them blank.
            k: Number of hits wanted per query, at least 1.

        Returns:
            The hits of each query, best first.

        Raises:
            ValueError: If there is no query, a query is blank, or k is below 1.
        """
        for number, text in enumerate(queries, start=1):
            if not text.strip():
                raise ValueError(f"a query must not be blank; received {text!r} as query {number}")
        vectors = encode(self.model, queries, "query")
        hits = self.index.search(vectors, k)
        results = []
        for row, (ids, scores) in enumerate(zip(hits.ids, hits.scores, strict=True)):
            texts = [self.corpus[key] for key in ids]
            if texts and isinstance(self.model, SparseEncoder):
                # The documents are encoded again, because an index cannot return the vector of one document.
                documents = encode(self.model, texts, "document")  # [n, V]
                terms = matched_terms(self.model, vectors[[row]], documents)
            else:
                terms = [[] for _ in texts]
            found = zip(ids, scores.tolist(), texts, terms, strict=True)
            results.append([Found(*entry) for entry in found])
        return results


def matched_terms(model: SparseEncoder, query: Vectors, documents: Vectors) -> list[list[tuple[str, float]]]:
    """Return the terms that a query shares with each document, with what each adds to the score.

    Args:
        model: The encoder, whose similarity says how vectors are compared.
        query: The vector of the query, CSR `[1, V]`.
        documents: The vectors of n documents, CSR `[n, V]`, n >= 1.

    Returns:
        One list of (term, product of the two weights) per document, the largest product first.
    """
    similarity, width = check_encoder(model), documents.shape[1]
    left = sparse_vectors(query, "queries", width, similarity)
    right = sparse_vectors(documents, "documents", width, similarity)
    return named_terms(model, sparse.csr_array(right.multiply(left)))


def named_terms(model: SparseEncoder, vectors: Vectors) -> list[list[tuple[str, float]]]:
    """Return the active terms of vectors by their names.

    Args:
        model: The encoder, which names the terms.
        vectors: CSR `[n, V]`, n >= 1.

    Returns:
        One list of (term, weight) per row, the largest weight first.
    """
    table = vectors.tocoo()  # [n, V]
    table.eliminate_zeros()
    # `SparseEncoder.decode` returns the terms of each row by name, the largest weight first. It takes a
    # tensor of torch.
    indices = torch.from_numpy(np.stack(table.coords).astype(np.int64))
    tensor = torch.sparse_coo_tensor(
        indices, torch.from_numpy(table.data), table.shape, check_invariants=True
    )
    return cast("list[list[tuple[str, float]]]", model.decode(tensor))
