"""Dense teachers for distillation; `TeacherCache` keeps what they return."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexforge.data.retrieval_data import DataError
from lexforge.data.teacher_cache import Teacher, TeacherCache

__all__ = ["LsaTeacher", "SentenceTransformerTeacher", "Teacher", "TeacherCache", "load_teacher"]


class SentenceTransformerTeacher:
    """A dense `SentenceTransformer` as the teacher.

    Args:
        model_name_or_path: What `SentenceTransformer` loads: a name on the hub or a folder.
        batch_size: Texts a forward pass.
        max_seq_length: Cut texts after this many tokens; the model's own limit by default.
        device: As in `SentenceTransformer`; chosen there by default.
        model_kwargs: As in `SentenceTransformer`, such as `{"dtype": "bfloat16"}`.

    Raises:
        DataError: The model cannot be loaded, with the reason and what can be passed instead.
    """

    def __init__(
        self,
        model_name_or_path: str = "BAAI/bge-m3",
        *,
        batch_size: int = 32,
        max_seq_length: int | None = None,
        device: str | None = None,
        model_kwargs: dict[str, Any] | None = None,
    ) -> None:
        from sentence_transformers import SentenceTransformer

        from lexforge.models.fingerprint import fingerprint

        try:
            self._encoder = SentenceTransformer(model_name_or_path, device=device, model_kwargs=model_kwargs)
        except (OSError, ValueError) as error:
            raise DataError(
                f"the teacher {model_name_or_path!r} cannot be loaded; pass a folder or a model name that "
                f"the hub or its local cache has, or use LsaTeacher, which needs no model ({error})"
            ) from error
        if max_seq_length is not None:
            self._encoder.max_seq_length = max_seq_length
        self._batch_size = batch_size
        self.name = f"{Path(model_name_or_path).name}-{fingerprint(self._encoder)}"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts: [N, D] float32, rows of L2 norm 1."""
        embeddings = self._encoder.encode(
            list(texts), batch_size=self._batch_size, normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(embeddings, dtype=np.float32)


class LsaTeacher:
    """Latent semantic analysis of the corpus itself: a teacher that needs no model and no download.

    TF-IDF (logarithmic term frequency) and a truncated singular value decomposition, as in Deerwester et al.,
    "Indexing by Latent Semantic Analysis" (1990). Made by `LsaTeacher.fit`.
    """

    def __init__(self, pipeline: Any, name: str) -> None:
        self._pipeline = pipeline
        self.name = name

    @classmethod
    def fit(
        cls, corpus_texts: Iterable[str], dimensions: int = 256, seed: int = 0, analyzer: str = "word"
    ) -> LsaTeacher:
        """Fit on a corpus; the same corpus, dimensions and seed give the same teacher.

        Args:
            corpus_texts: The texts to learn from; no query of an evaluation split should be among them.
            dimensions: Width D of an embedding, below the number of texts and of distinct terms.
            seed: Of the randomised decomposition.
            analyzer: "word", or "char_wb" (character bigrams and trigrams inside words) for languages without
                spaces or with particles, such as Korean, Japanese or Chinese.

        Returns:
            The teacher.

        Raises:
            ValueError: Fewer texts or terms than `dimensions` + 1, or an unknown analyzer.
        """
        from sklearn import __version__ as sklearn_version
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import Normalizer

        if analyzer not in ("word", "char_wb"):
            raise ValueError(f"analyzer must be 'word' or 'char_wb', got {analyzer!r}")
        texts = list(corpus_texts)
        vectorizer = TfidfVectorizer(
            analyzer=analyzer,
            ngram_range=(1, 1) if analyzer == "word" else (2, 3),
            token_pattern=r"(?u)\b\w+\b" if analyzer == "word" else None,
            sublinear_tf=True,
            dtype=np.float32,
        )
        terms = vectorizer.fit(texts).vocabulary_ if texts else ()
        if dimensions < 1 or min(len(texts), len(terms)) <= dimensions:
            raise ValueError(
                f"dimensions must be from 1 to below the number of texts and of terms, got {dimensions} "
                f"with {len(texts)} texts and {len(terms)} terms"
            )
        decomposition = TruncatedSVD(dimensions, random_state=seed)
        decomposition.fit(vectorizer.transform(texts))
        digest = hashlib.sha256(f"{sklearn_version} {analyzer} {dimensions} {seed}".encode())
        for text in texts:
            digest.update(f"{len(text)} {text}".encode())
        pipeline = make_pipeline(vectorizer, decomposition, Normalizer(copy=False))
        return cls(pipeline, f"lsa-{dimensions}-{digest.hexdigest()[:16]}")

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts: [N, D] float32, rows of L2 norm 1, or all 0 for a text without any known term."""
        return np.asarray(self._pipeline.transform(list(texts)), dtype=np.float32)


def load_teacher(name: str, corpus_texts: Sequence[str]) -> Teacher:
    """A teacher by the name a command line gives.

    Args:
        name: `lsa` (fitted on the words of the corpus, 256 dimensions at most), `lsa-char` (on its character
            bigrams and trigrams, for Korean, Japanese or Chinese), or what `SentenceTransformer` loads.
        corpus_texts: The corpus, for the fitted teachers.

    Returns:
        The teacher.

    Raises:
        DataError: The model cannot be loaded, or the corpus is too small to fit on.
    """
    if name in ("lsa", "lsa-char"):
        dimensions = min(256, len(corpus_texts) - 1)
        return LsaTeacher.fit(corpus_texts, dimensions, analyzer="word" if name == "lsa" else "char_wb")
    return SentenceTransformerTeacher(name)
