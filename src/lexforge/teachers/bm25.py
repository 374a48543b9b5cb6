"""BM25 as a teacher: vectors of any text whose dot products are BM25's scores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from lexforge.common.similarity import Similarity
from lexforge.common.types import TEXT_KINDS, TextKind
from lexforge.retrieval.bm25 import K1, B, Tokenization, tokenization_of, tokens

WIDTH = 1 << 15
"""Columns of a vector. In a corpus with more distinct tokens, rare ones share theirs."""


class BM25Teacher:
    """Looks up vectors of texts; the dot product of a query's and a document's is the BM25 score of the pair.

    The loss has to compare them so: `NeuralSparseLoss(teacher_similarity="dot")`. The score is that of
    `lexforge.retrieval.BM25Index` over the same corpus, but for two roundings: beyond `WIDTH` distinct
    tokens rare ones share columns with each other, and weights have 16 bits. In exchange a vector has the
    same width for every corpus and can be gathered over ranks, and texts outside the corpus have one too.
    `BM25Teacher.fit` makes a teacher.

    Args:
        idf: Token -> inverse document frequency in the corpus, the most frequent token first: the order
            gives the columns, and must be the same on all ranks. Other tokens count nothing.
        mean_tokens: Mean number of tokens in a document.
        tokenize: How texts are cut into tokens, as `tokenization_of` says.

    Source: Kamphuis et al. 2020, "Which BM25 do you mean?", Lucene's variant.
    """

    similarity: Similarity = "dot"

    def __init__(self, idf: dict[str, float], mean_tokens: float, tokenize: Tokenization) -> None:
        # Token -> its column and its inverse document frequency. Of too many tokens those of the rarer half
        # share columns: a query hardly ever holds one of them, and few documents hold another.
        half = WIDTH // 2
        self._tokens = {
            token: (place if place < half else half + place % half, value)
            for place, (token, value) in enumerate(idf.items())
        }
        self._mean_tokens = mean_tokens
        self._tokenize: Tokenization = tokenize

    @classmethod
    def fit(cls, corpus_texts: Iterable[str]) -> BM25Teacher:
        """Count the tokens of a corpus: words, or character bigrams of a Chinese, Japanese or Korean corpus.

        Args:
            corpus_texts: The texts that are searched.

        Returns:
            The teacher.

        Raises:
            ValueError: If no text holds a token.
        """
        texts = list(corpus_texts)
        tokenize = tokenization_of(texts)
        holding: Counter[str] = Counter()  # token -> number of documents that hold it
        total = 0
        for text in texts:
            own = tokens(text, tokenize)
            total += len(own)
            holding.update(set(own))
        if not total:
            raise ValueError(
                f"BM25 can only teach from a corpus that holds a token; received {len(texts)} texts "
                "without any"
            )
        by_frequency = sorted(holding.items(), key=lambda held: (-held[1], held[0]))
        idf = {token: math.log1p((len(texts) - count + 0.5) / (count + 0.5)) for token, count in by_frequency}
        return cls(idf, total / len(texts), tokenize)

    def lookup(self, texts: Sequence[str], kind: TextKind) -> NDArray[np.float16]:
        """Return the vectors of texts.

        Args:
            texts: N texts.
            kind: "query" gives the counts of the tokens, "document" their BM25 weights.

        Returns:
            `[N, WIDTH]` float16, >= 0.

        Raises:
            ValueError: If the kind is unknown.
        """
        if kind not in TEXT_KINDS:
            raise ValueError(f"kind must be 'query' or 'document'; received {kind!r}")
        places: list[int] = []
        columns: list[int] = []
        weights: list[float] = []
        for place, text in enumerate(texts):
            own = tokens(text, self._tokenize)
            norm = K1 * (1 - B + B * len(own) / self._mean_tokens)
            for token, count in Counter(own).items():
                if token in self._tokens:
                    column, idf = self._tokens[token]
                    places.append(place)
                    columns.append(column)
                    weights.append(count if kind == "query" else idf * count / (count + norm))
        rows = np.zeros((len(texts), WIDTH), np.float16)
        cells = np.array(places, np.intp), np.array(columns, np.intp)
        np.add.at(rows, cells, np.array(weights, np.float16))  # tokens may share a column
        return rows
