"""Latent semantic analysis of the corpus as the teacher."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lexforge.common.similarity import Similarity
from lexforge.common.text_identity import text_digest
from lexforge.common.types import TextKind
from lexforge.common.words import word_pattern, words

SEED = 0  # of the randomised decomposition
MOST_DIMENSIONS = 256  # D, where the corpus has more texts and terms


class LsaTeacher:
    """Latent semantic analysis of the corpus itself: a teacher that needs no model and no download.

    It computes TF-IDF with logarithmic term frequency and a truncated singular value decomposition. Queries
    and documents are embedded alike. `LsaTeacher.fit` makes one.

    Source: Deerwester et al. 1990, "Indexing by Latent Semantic Analysis".
    """

    similarity: Similarity = "cosine"

    def __init__(self, pipeline: Any, name: str) -> None:
        self._pipeline = pipeline
        self.name = name

    @classmethod
    def fit(cls, corpus_texts: Iterable[str], analyzer: Literal["word", "char_wb"] = "word") -> LsaTeacher:
        """Fit a teacher on a corpus; the same corpus and analyzer give the same teacher.

        Args:
            corpus_texts: The texts from which it learns; no query of an evaluation split should be among
                them. The width D of an embedding is below their number and that of their distinct terms, and
                at most 256.
            analyzer: "word", or "char_wb" (character bigrams and trigrams inside words) for languages without
                spaces or with particles, such as Korean, Japanese or Chinese.

        Returns:
            The teacher.

        Raises:
            ValueError: If there are fewer than two texts or terms.
        """
        from sklearn import __version__ as sklearn_version
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import Normalizer

        texts = list(corpus_texts)
        vectorizer = TfidfVectorizer(
            analyzer=analyzer,
            ngram_range=(1, 1) if analyzer == "word" else (2, 3),
            token_pattern=None,
            tokenizer=words if analyzer == "word" else None,
            sublinear_tf=True,
            dtype=np.float32,
        )
        terms = vectorizer.fit(texts).vocabulary_ if texts else ()
        dimensions = min(MOST_DIMENSIONS, len(texts) - 1, len(terms) - 1)
        if dimensions < 1:
            raise ValueError(
                "latent semantic analysis needs at least 2 texts and 2 different terms; received "
                f"{len(texts)} and {len(terms)}"
            )
        decomposition = TruncatedSVD(dimensions, random_state=SEED)
        decomposition.fit(vectorizer.transform(texts))
        # The name is a digest of all that decides the vectors: the version of the code, settings and texts.
        pattern = word_pattern().pattern if analyzer == "word" else ""
        digest = text_digest([sklearn_version, analyzer, str(dimensions), str(SEED), pattern, *texts])
        pipeline = make_pipeline(vectorizer, decomposition, Normalizer(copy=False))
        return cls(pipeline, f"lsa-{dimensions}-{digest[:16]}")

    def encode(self, texts: Sequence[str], kind: TextKind = "document") -> NDArray[np.float32]:
        """Embed N texts, whatever their kind.

        Args:
            texts: The texts.
            kind: "query" or "document"; the embedding is the same.

        Returns:
            `[N, D]` float32, rows of L2 norm 1; the row of a text without any known term is 0.
        """
        return np.asarray(self._pipeline.transform(list(texts)), dtype=np.float32)
