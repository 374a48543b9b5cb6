"""BM25, the baseline of every comparison: bm25s computes the weights, `InvertedIndex` searches them."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Literal, SupportsIndex

import numpy as np
from scipy import sparse

from lexforge.common.cjk import mostly_cjk
from lexforge.common.progress import Progress
from lexforge.common.types import check_texts
from lexforge.common.words import words
from lexforge.retrieval.base import Hits, check_ids
from lexforge.retrieval.inverted import InvertedIndex

Tokenization = Literal["words", "bigrams"]
K1 = 0.9  # saturation of the term frequency
B = 0.4  # strength of the normalisation by document length


class BM25Index:
    """BM25 over texts, in Lucene's variant (Kamphuis et al., "Which BM25 do you mean?", 2020).

    The score of a document is the sum of the weights of the query's tokens in it; a repeated token of the
    query counts as often as it occurs. A document that shares no token with the query is no hit. Documents of
    equal score stand in the order of their positions.

    Args:
        index: The weights as an inverted index with one column per token.
        vocabulary: The column of each token.
        tokenize: How texts are cut into tokens; see `tokenization_of`.
    """

    def __init__(self, index: InvertedIndex, vocabulary: dict[str, int], tokenize: Tokenization) -> None:
        self.tokenize: Tokenization = tokenize
        self.index = index
        self._vocabulary = vocabulary

    @classmethod
    def build(cls, texts: list[str], ids: list[str], *, show_progress_bar: bool = False) -> BM25Index:
        """Return an index of the texts, cut into tokens as `tokenization_of` says.

        Args:
            texts: One text per document, with its title.
            ids: As many distinct strings.
            show_progress_bar: Whether to show how many documents have been cut into tokens.

        Returns:
            The index.

        Raises:
            ValueError: If no document holds a token, or `InvertedIndex.build` would refuse the ids.
        """
        check_ids(ids, len(texts), set())
        chosen = tokenization_of(texts)
        vocabulary: dict[str, int] = {}
        corpus = []
        with Progress(len(texts), "BM25", show=show_progress_bar) as progress:
            for text in texts:
                corpus.append(
                    [vocabulary.setdefault(token, len(vocabulary)) for token in tokens(text, chosen)]
                )
                progress.update(1)
        if not vocabulary:
            raise ValueError(
                f"at least one document must hold a token; received {len(texts)} documents without any"
            )
        model = _bm25s().BM25(k1=K1, b=B, method="lucene")
        model.index((corpus, vocabulary), create_empty_token=False, show_progress=False)
        weights = sparse.csc_array(  # [documents, tokens]
            (model.scores["data"], model.scores["indices"], model.scores["indptr"]),
            shape=(len(texts), len(vocabulary)),
        )
        return cls(InvertedIndex.build(weights.tocsr(), ids), vocabulary, chosen)

    def search(self, texts: list[str], k: SupportsIndex) -> Hits:
        """Find the k documents of highest score for each query text.

        Args:
            texts: The queries.
            k: Number of hits wanted per query, at least 1.

        Returns:
            The hits; a query without a token of the corpus has none.

        Raises:
            TypeError: If `texts` is a single string instead of a list.
            ValueError: If k is below 1.
        """
        return self.index.search(self.query_vectors(texts), k)

    def query_vectors(self, texts: Sequence[str]) -> sparse.csr_array:
        """Return the vectors of queries, whose dot products with those of `index` are BM25's scores.

        Args:
            texts: The queries.

        Returns:
            CSR `[Q, tokens] float32`: how often each token of the corpus occurs in each query.

        Raises:
            TypeError: If `texts` is a single string instead of a list.
        """
        check_texts(texts)
        columns: list[int] = []
        counts: list[int] = []
        ends = [0]
        for text in texts:
            known = Counter(
                self._vocabulary[token] for token in tokens(text, self.tokenize) if token in self._vocabulary
            )
            columns.extend(known)
            counts.extend(known.values())
            ends.append(len(columns))
        return sparse.csr_array(
            (np.array(counts, np.float32), np.array(columns, np.int32), np.array(ends, np.int32)),
            shape=(len(texts), len(self._vocabulary)),
        )


def _bm25s() -> ModuleType:
    """The module bm25s, imported without two things that its import does to a process.

    It lets JAX search for the top k once, where JAX is installed, and JAX then takes three quarters of the
    GPU's memory, 60 GB of an H100. And it sets the level of its logger to DEBUG.
    """
    jax = sys.modules.get("jax")
    sys.modules["jax"] = None  # type: ignore[assignment] # an import of it fails, and bm25s goes without
    try:
        import bm25s
    finally:
        if jax is None:
            del sys.modules["jax"]
        else:
            sys.modules["jax"] = jax
    logging.getLogger("bm25s").setLevel(logging.NOTSET)
    return bm25s


def tokenization_of(texts: Iterable[str]) -> Tokenization:
    """Return how a corpus is cut into tokens.

    `words` are those of `lexforge.common.words`, lower-cased. `bigrams` are the pairs of neighbouring
    characters inside such words, and the words of one character: for a corpus of which more than half of the
    letters are Hangul, kana or Han.
    """
    return "bigrams" if mostly_cjk(texts) else "words"


def tokens(text: str, tokenize: Tokenization) -> list[str]:
    """Return the tokens of a text in order: lower-cased words, or the character bigrams inside them."""
    found = words(text.lower())
    if tokenize == "words":
        return found
    return [word[i : i + 2] for word in found for i in range(max(1, len(word) - 1))]
