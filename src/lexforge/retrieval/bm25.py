"""BM25, the baseline to beat: weights by bm25s, search by the package's own exact index."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping
from typing import Literal, SupportsIndex

import numpy as np
from scipy import sparse

from lexforge.retrieval.base import Hits, check_ids, check_k
from lexforge.retrieval.inverted import InvertedIndex

Tokenization = Literal["words", "bigrams"]

_WORD = re.compile(r"\w+")
_LETTER = re.compile(r"[^\W\d_]")
# Hangul (letters, compatibility letters, syllables), kana (with half-width) and Han (with extensions).
_CJK = re.compile(
    "[\u1100-\u11ff\u3130-\u318f\uac00-\ud7ff\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


class BM25Index:
    """BM25 over texts, in Lucene's variant (Kamphuis et al., "Which BM25 do you mean?", 2020).

    A query scores the sum of its tokens' weights, a repeated token as often as it occurs. Documents that
    share no token with the query are no hits; ties stand in the order of document position.

    Args:
        index: The weights as an inverted index, a column a token.
        vocabulary: Token to column.
        tokenize: How texts become tokens.
    """

    def __init__(self, index: InvertedIndex, vocabulary: dict[str, int], tokenize: Tokenization) -> None:
        self.tokenize: Tokenization = tokenize
        self._index = index
        self._vocabulary = vocabulary

    @classmethod
    def build(
        cls,
        texts: list[str],
        ids: list[str],
        tokenize: Literal["auto", "words", "bigrams"] = "auto",
        k1: float = 0.9,
        b: float = 0.4,
    ) -> BM25Index:
        """An index of the texts.

        Args:
            texts: One text a document, title included.
            ids: As many distinct strings.
            tokenize: `words` are lower-cased runs of word characters; `bigrams` are pairs of neighbouring
                characters inside words, and words of one character; `auto` is `bigrams` where more than half
                of the corpus's letters are Hangul, kana or Han, else `words`.
            k1: Saturation of the term frequency, >= 0.
            b: Share of length normalisation, 0 to 1.

        Returns:
            The index.

        Raises:
            ValueError: No document holds a token, or a parameter outside its range, or ids as for
                `InvertedIndex.build`.
        """
        import bm25s

        logging.getLogger("bm25s").setLevel(logging.NOTSET)  # importing it sets DEBUG: follow the root again
        if tokenize not in ("auto", "words", "bigrams"):
            raise ValueError(f"tokenize is {tokenize!r}; allowed are 'auto', 'words' and 'bigrams'")
        if not k1 >= 0 or not 0 <= b <= 1:
            raise ValueError(f"k1 is {k1} and b is {b}; k1 must be >= 0 and b from 0 to 1")
        check_ids(ids, len(texts), set())
        chosen: Tokenization = _choose(texts) if tokenize == "auto" else tokenize
        vocabulary: dict[str, int] = {}
        corpus = [
            [vocabulary.setdefault(token, len(vocabulary)) for token in tokens(text, chosen)]
            for text in texts
        ]
        if not vocabulary:
            raise ValueError(f"none of the {len(texts)} documents holds a token: nothing to search")
        model = bm25s.BM25(k1=k1, b=b, method="lucene")
        model.index((corpus, vocabulary), create_empty_token=False, show_progress=False)
        weights = sparse.csc_array(
            (model.scores["data"], model.scores["indices"], model.scores["indptr"]),
            shape=(len(texts), len(vocabulary)),
        )
        return cls(InvertedIndex.build(weights.tocsr(), ids), vocabulary, chosen)

    def search(self, texts: list[str], k: SupportsIndex) -> Hits:
        """The k documents of highest score for each query text.

        Args:
            texts: The queries.
            k: Hits wanted, at least 1.

        Returns:
            The hits; an empty row for a query none of whose tokens the corpus knows.

        Raises:
            ValueError: k below 1.
        """
        wanted = check_k(k)
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
        queries = sparse.csr_array(
            (np.array(counts, np.float32), np.array(columns, np.int32), np.array(ends, np.int32)),
            shape=(len(texts), len(self._vocabulary)),
        )
        return self._index.search(queries, wanted)

    def negatives(
        self, queries: Mapping[str, str], judged: Mapping[str, Mapping[str, int]], k: SupportsIndex
    ) -> dict[str, list[str]]:
        """The best documents of each query that nobody judged: hard negatives.

        Args:
            queries: Query id to text.
            judged: Query id to the documents to leave out (a judged document is a positive, or known not to
                be).
            k: Documents looked at for each query.

        Returns:
            Query id to at most k document ids, best first.

        Raises:
            ValueError: k below 1.
        """
        hits = self.search(list(queries.values()), k).ids
        return {
            query: [document for document in found if document not in judged.get(query, ())]
            for query, found in zip(queries, hits, strict=True)
        }

    def __len__(self) -> int:
        """Number of documents."""
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """Bytes of the posting arrays."""
        return self._index.nbytes


def tokens(text: str, tokenize: Tokenization) -> list[str]:
    """The tokens of a text, in order: lower-cased words, or character bigrams inside them."""
    words: list[str] = _WORD.findall(text.lower())
    if tokenize == "words":
        return words
    return [word[i : i + 2] for word in words for i in range(max(1, len(word) - 1))]


def _choose(texts: list[str]) -> Tokenization:
    letters = sum(len(_LETTER.findall(text)) for text in texts)
    return "bigrams" if 2 * sum(len(_CJK.findall(text)) for text in texts) > letters else "words"
