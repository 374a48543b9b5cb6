"""Dense teachers for distillation; `TeacherCache` keeps what they return."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexforge.common.types import TextKind
from lexforge.data.columns import LABEL, text_columns
from lexforge.data.retrieval_data import DataError
from lexforge.data.teacher_cache import Teacher, TeacherCache

__all__ = [
    "LsaTeacher",
    "SentenceTransformerTeacher",
    "Teacher",
    "TeacherCache",
    "check_labelled_rows",
    "check_teacher_options",
    "load_teacher",
    "teacher_name",
]

DEFAULT_TEACHER = "lsa"  # needs no files
LARGEST_FIT = 100_000
"""Texts of a corpus on which a teacher is fitted at most."""
_SCORE_PAIRS = (
    ", and dense embeddings are needed here; compute its scores of listed candidates with "
    "`lexforge score` and pass those"
)
# What each kind of model is, where it is no dense encoder, and what can be done with it.
_REFUSED = {
    "sparse": f"a SparseEncoder{_SCORE_PAIRS}",
    "cross-encoder": f"a CrossEncoder{_SCORE_PAIRS}",
    "multi-vector": "a MultiVectorEncoder, and one dense embedding per text is needed here",
    "unknown": "a bare transformer, which says nothing about its pooling; save it as a SentenceTransformer "
    "with the pooling that it was trained with",
}


class SentenceTransformerTeacher:
    """A dense `SentenceTransformer` as the teacher; queries and documents get the prompts saved with it.

    Args:
        model_name_or_path: A name on the hub or a folder, as `SentenceTransformer` takes it.
        batch_size: The number of texts per forward pass.
        max_seq_length: Texts are cut after this many tokens; None keeps the model's own limit.
        device: Where the model is put; None leaves the choice to sentence-transformers.
        model_kwargs: Arguments for loading the transformer, such as `{"dtype": "bfloat16"}`.
        prompts: Prompts by name, such as `{"query": "Instruct: ..."}`, for a model that was saved without
            them. None keeps those that were saved with it.

    Raises:
        DataError: If the model cannot be loaded, or if it is no dense encoder; the message says what can be
            used instead.
    """

    def __init__(
        self,
        model_name_or_path: str = "BAAI/bge-m3",
        *,
        batch_size: int = 32,
        max_seq_length: int | None = None,
        device: str | None = None,
        model_kwargs: dict[str, Any] | None = None,
        prompts: dict[str, str] | None = None,
    ) -> None:
        from sentence_transformers import SentenceTransformer

        from lexforge.models.fingerprint import fingerprint
        from lexforge.models.names import checked_name, model_kind

        try:
            name = checked_name(model_name_or_path)
            # SentenceTransformer loads anything and takes the mean over its tokens, which is no teacher.
            refused = _REFUSED.get(model_kind(name))
            if refused is None:
                self._encoder = SentenceTransformer(
                    name, device=device, model_kwargs=model_kwargs, prompts=prompts
                )
        except (OSError, ValueError) as error:
            raise DataError(
                f"the teacher {model_name_or_path!r} cannot be loaded; pass a folder or a model name that "
                f"the hub or its local cache has, or use LsaTeacher, which needs no model ({error})"
            ) from error
        if refused is not None:
            raise DataError(f"the teacher {model_name_or_path!r} is {refused}")
        if max_seq_length is not None:
            self._encoder.max_seq_length = max_seq_length
        self._batch_size = batch_size
        # The fingerprint covers weights, tokenizer and prompts, so no cache can mix two teachers.
        self.name = f"{Path(model_name_or_path).name}-{fingerprint(self._encoder)}"

    def encode(self, texts: Sequence[str], kind: TextKind) -> NDArray[np.float32]:
        """Embed N texts of one kind: `[N, D]` float32, rows of L2 norm 1."""
        from lexforge.models.prompts import encode_kind

        options = {"batch_size": self._batch_size, "normalize_embeddings": True, "show_progress_bar": False}
        embeddings = encode_kind(self._encoder, texts, kind, **options)
        return np.asarray(embeddings, dtype=np.float32)


class LsaTeacher:
    """Latent semantic analysis of the corpus itself: a teacher that needs no model and no download.

    It computes TF-IDF with logarithmic term frequency and a truncated singular value decomposition. Queries
    and documents are embedded alike. `LsaTeacher.fit` makes one.

    Source: Deerwester et al. 1990, "Indexing by Latent Semantic Analysis".
    """

    def __init__(self, pipeline: Any, name: str) -> None:
        self._pipeline = pipeline
        self.name = name

    @classmethod
    def fit(
        cls, corpus_texts: Iterable[str], dimensions: int = 256, seed: int = 0, analyzer: str = "word"
    ) -> LsaTeacher:
        """Fit a teacher on a corpus; the same corpus, dimensions and seed give the same teacher.

        Args:
            corpus_texts: The texts from which it learns; no query of an evaluation split should be among
                them.
            dimensions: Width D of an embedding; below the number of texts and of distinct terms.
            seed: The seed of the randomised decomposition.
            analyzer: "word", or "char_wb" (character bigrams and trigrams inside words) for languages without
                spaces or with particles, such as Korean, Japanese or Chinese.

        Returns:
            The teacher.

        Raises:
            ValueError: If there are fewer texts or terms than `dimensions` + 1, or if the analyzer is
                unknown.
        """
        from sklearn import __version__ as sklearn_version
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import Normalizer

        if analyzer not in ("word", "char_wb"):
            raise ValueError(f"analyzer must be 'word' or 'char_wb'; received {analyzer!r}")
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
                "dimensions must be at least 1 and below the number of texts and of terms; received "
                f"{dimensions} with {len(texts)} texts and {len(terms)} terms"
            )
        decomposition = TruncatedSVD(dimensions, random_state=seed)
        decomposition.fit(vectorizer.transform(texts))
        # The name is a digest of all that decides the vectors: the version of the code, settings and texts.
        digest = hashlib.sha256(f"{sklearn_version} {analyzer} {dimensions} {seed}".encode())
        for text in texts:
            digest.update(f"{len(text)} {text}".encode())
        pipeline = make_pipeline(vectorizer, decomposition, Normalizer(copy=False))
        return cls(pipeline, f"lsa-{dimensions}-{digest.hexdigest()[:16]}")

    def encode(self, texts: Sequence[str], kind: TextKind = "document") -> NDArray[np.float32]:
        """Embed N texts, whatever their kind.

        Args:
            texts: The texts.
            kind: "query" or "document"; the embedding is the same.

        Returns:
            `[N, D]` float32, rows of L2 norm 1; the row of a text without any known term is 0.
        """
        return np.asarray(self._pipeline.transform(list(texts)), dtype=np.float32)


def check_teacher_options(
    teacher: str | None, scores: Path | None, cache: Path | None = None, *, needed: bool
) -> None:
    """Refuse the options `--teacher`, `--teacher-scores` and `--teacher-cache` where a run would ignore one.

    Args:
        teacher: The value of `--teacher`; None if it was not given.
        scores: The value of `--teacher-scores`; None if it was not given.
        cache: The value of `--teacher-cache`; None if it was not given.
        needed: Whether the loss reads a teacher.

    Raises:
        ValueError: If a teacher and scores are both given, if one of the options is given to a run without
            distillation, or if a cache is given beside scores, which need none.
    """
    if teacher is not None and scores is not None:
        raise ValueError(f"pass --teacher or --teacher-scores; received {teacher!r} and {str(scores)!r}")
    if cache is not None and scores is not None:
        raise ValueError(
            f"the scores of --teacher-scores {scores} take the place of a teacher, so --teacher-cache "
            f"{cache} would be ignored; leave one of them out"
        )
    options = {"teacher": teacher, "teacher-scores": scores, "teacher-cache": cache}
    given = [f"--{name} {value}" for name, value in options.items() if value is not None]
    if given and not needed:
        raise ValueError(
            f"the loss of this run reads no teacher, so {' and '.join(given)} would be ignored; choose a "
            "preset that distils (--preset lexforge, v26, v25 or v23), set --loss.distillation-weight, or "
            "leave it out"
        )


def check_labelled_rows(
    teacher: str | None, rows: Sequence[Mapping[str, Any]], *, needed: bool, cache: Path | None = None
) -> None:
    """Refuse training rows whose teacher scores cannot be used as the options say.

    Args:
        teacher: The value of `--teacher`; None if it was not given.
        rows: Training rows under the column contract, at least one.
        needed: Whether the loss reads a teacher.
        cache: The value of `--teacher-cache`; None if it was not given.

    Raises:
        ValueError: If the rows carry the scores of a teacher and `--teacher` names another or a cache is
            given, or if they carry one score each, with which nothing can be compared.
    """
    if not needed or LABEL not in rows[0]:
        return
    if teacher is not None or cache is not None:
        given = f"--teacher {teacher}" if teacher is not None else f"--teacher-cache {cache}"
        raise ValueError(
            f"the rows carry the scores of a teacher in their column {LABEL!r}, so {given} would be ignored; "
            "leave the option out, or pass rows without that column"
        )
    if len(text_columns(rows[0])) < 3:
        raise ValueError(
            "a teacher's scores are compared within a row, and these rows have a positive and no negative: "
            "give --negatives judged or --negatives bm25, or a file of rows with negatives and their scores"
        )


def teacher_name(teacher: str, scores: Path | None, rows: Sequence[Mapping[str, Any]]) -> str:
    """Name the teacher of a run that distils, for a reader.

    Args:
        teacher: The name of the teacher that the run has without scores.
        scores: The value of `--teacher-scores`; None if it was not given.
        rows: Training rows under the column contract, at least one.

    Returns:
        The name of the file of scores, the words "scores in the training rows", or the name of the teacher.
    """
    if scores is not None:
        return scores.name
    return "scores in the training rows" if LABEL in rows[0] else teacher


def texts_to_fit(corpus_texts: Sequence[str]) -> Sequence[str]:
    """Return the texts on which a teacher is fitted: of more than `LARGEST_FIT` that many, evenly spaced."""
    if len(corpus_texts) <= LARGEST_FIT:
        return corpus_texts
    places = np.linspace(0, len(corpus_texts) - 1, LARGEST_FIT).astype(int)
    return [corpus_texts[place] for place in places]


def load_teacher(name: str | None, corpus_texts: Sequence[str]) -> Teacher:
    """Load or fit a teacher by the name that a command line takes.

    Args:
        name: `lsa` (fitted on the words of the corpus, at most 256 dimensions), `lsa-char` (fitted on its
            character bigrams and trigrams, for Korean, Japanese or Chinese), or a dense model's hub name or
            folder; None is `lsa`.
        corpus_texts: The corpus, for the fitted teachers; of more than `LARGEST_FIT` texts they take that
            many, evenly spaced, so that memory holds no more.

    Returns:
        The teacher.

    Raises:
        DataError: If the model cannot be loaded or is no dense encoder.
        ValueError: If the corpus is too small to fit on.
    """
    name = name or DEFAULT_TEACHER
    if name in ("lsa", "lsa-char"):
        corpus_texts = texts_to_fit(corpus_texts)
        dimensions = min(256, len(corpus_texts) - 1)
        return LsaTeacher.fit(corpus_texts, dimensions, analyzer="word" if name == "lsa" else "char_wb")
    return SentenceTransformerTeacher(name)
