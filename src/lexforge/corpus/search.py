"""Texts searched in a stored index: documents with their texts, and the terms that made the score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from scipy import sparse
from sentence_transformers import SparseEncoder
from sentence_transformers.base.model import BaseModel

from lexforge.corpus.encoding import encode
from lexforge.corpus.stored_index import Source
from lexforge.models.fingerprint import fingerprint, text_digest
from lexforge.models.load import check_encoder
from lexforge.retrieval.base import Index
from lexforge.retrieval.vectors import sparse_vectors


@dataclass(frozen=True)
class Found:
    """A hit as a person reads it.

    Args:
        id: The document's.
        score: As the index gives it.
        text: The document's.
        terms: For a sparse model, the terms that query and document share with what each adds to the score,
            strongest first; they sum to it, up to rounding. Empty for a dense model.
    """

    id: str
    score: float
    text: str
    terms: list[tuple[str, float]]


class Searcher:
    """Searches an index by the model that made it.

    Args:
        index: The documents' vectors.
        model: The encoder.
        corpus: Document id to text, as it was encoded.
        source: What the index was made of.

    Raises:
        ValueError: Another model or corpus.
    """

    def __init__(self, index: Index, model: BaseModel, corpus: Mapping[str, str], source: Source) -> None:
        if fingerprint(model) != source.fingerprint:
            raise ValueError(
                f"the index was made by {source.model} at {source.max_seq_length} tokens; this model (at "
                f"{model.max_seq_length} tokens) has other weights or settings"
            )
        if text_digest(part for pair in corpus.items() for part in pair) != source.corpus:
            raise ValueError(f"the index was made of another corpus than these {len(corpus)} documents")
        self.index, self.model, self.corpus = index, model, corpus
        self.similarity = check_encoder(model)

    def search(self, queries: Sequence[str], k: int) -> list[list[Found]]:
        """The k best documents of each query.

        Args:
            queries: Texts, none of them blank.
            k: Hits wanted, at least 1.

        Returns:
            The hits of each query, best first.

        Raises:
            ValueError: A blank query, or k below 1.
        """
        for number, text in enumerate(queries, start=1):
            if not text.strip():
                raise ValueError(f"query {number} is blank: there is nothing to search for")
        vectors = encode(self.model, queries, "query")
        hits = self.index.search(vectors, k)
        results = []
        for row, (ids, scores) in enumerate(zip(hits.ids, hits.scores, strict=True)):
            texts = [self.corpus[key] for key in ids]
            terms = self._terms(vectors[[row]], texts) if isinstance(self.model, SparseEncoder) else None
            shared = terms or [[] for _ in ids]
            found = zip(ids, scores.tolist(), texts, shared, strict=True)
            results.append([Found(*entry) for entry in found])
        return results

    def _terms(self, query: sparse.csr_array, texts: list[str]) -> list[list[tuple[str, float]]]:
        """Term by term, what the query's and each document's vectors multiply to."""
        if not texts:
            return []
        documents = encode(self.model, texts, "document")
        width = documents.shape[1]
        left = sparse_vectors(query, "queries", width, self.similarity)
        right = sparse_vectors(documents, "documents", width, self.similarity)
        products = sparse.csr_array(right.multiply(left)).tocoo()
        products.eliminate_zeros()
        indices = torch.from_numpy(np.stack(products.coords).astype(np.int64))
        table = torch.sparse_coo_tensor(
            indices, torch.from_numpy(products.data), products.shape, check_invariants=True
        )
        model = cast(SparseEncoder, self.model)
        return cast("list[list[tuple[str, float]]]", model.decode(table))
