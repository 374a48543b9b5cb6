"""Teachers by name, and what a collator looks the texts of a batch up in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lexforge.common.samples import evenly_spaced
from lexforge.common.types import DataError, Embeddings
from lexforge.settings import BM25, FITTED_TEACHERS, LSA, LSA_CHAR
from lexforge.teachers.bge_m3 import BGEM3Scorer, ScoreWeights
from lexforge.teachers.bm25 import BM25Teacher
from lexforge.teachers.cache import EmbeddingTeacher, TeacherCache
from lexforge.teachers.dense import SentenceTransformerTeacher
from lexforge.teachers.lsa import LsaTeacher
from lexforge.teachers.options import scores_pairs
from lexforge.teachers.pair_scores import label_rows, row_pairs, score_pairs
from lexforge.teachers.scorers import CrossEncoderScorer, EncoderScorer, MultiVectorScorer, PairScorer

if TYPE_CHECKING:
    from datasets import Dataset

Teacher: TypeAlias = EmbeddingTeacher | BM25Teacher | PairScorer
"""What teaches: embeddings of texts, BM25, or the scores of pairs."""
LARGEST_FIT = 100_000
"""Texts of a corpus on which a teacher is fitted at most."""


def load_teacher(name: str, documents: Sequence[str]) -> Teacher:
    """Load or fit a teacher by the name that a command line takes.

    Args:
        name: `bm25`; `lsa` (fitted on the words of the corpus, at most 256 dimensions), `lsa-char` (fitted on
            its character bigrams and trigrams, for Korean, Japanese or Chinese); or the hub name or folder of
            a dense `SentenceTransformer`, a `CrossEncoder`, a `MultiVectorEncoder` or a SPLADE encoder. Its
            files say which it is.
        documents: The texts of the corpus. A fitted teacher takes at most `LARGEST_FIT` of them, evenly
            spaced, so that memory holds no more.

    Returns:
        The teacher. A dense model gives embeddings; the other models score pairs of texts, so they teach
        rows that have negatives.

    Raises:
        DataError: If the model cannot be loaded, or is no teacher.
        ValueError: If the corpus is too small to fit on.
    """
    if name == BM25:
        return BM25Teacher.fit(texts_to_fit(documents))
    if name in (LSA, LSA_CHAR):
        documents = texts_to_fit(documents)
        return LsaTeacher.fit(documents, analyzer="word" if name == LSA else "char_wb")
    return load_scorer(name) if scores_pairs(name) else SentenceTransformerTeacher(name)


def load_scorer(
    name: str,
    *,
    batch_size: int = 32,
    max_seq_length: int | None = None,
    m3_weights: ScoreWeights | None = None,
) -> CrossEncoderScorer | EncoderScorer | MultiVectorScorer | BGEM3Scorer:
    """Load a teacher of pairs as what its files say it is.

    Unlike `load_teacher` it takes settings, and a dense model scores pairs by its own similarity here, in
    full precision.

    Args:
        name: A folder or a hub name: a `CrossEncoder` or a bare sequence classifier, a `SparseEncoder` or a
            bare masked language model (which is a SPLADE encoder), a dense `SentenceTransformer`, or a
            `MultiVectorEncoder` (sentence-transformers 6).
        batch_size: The number of pairs or texts per forward pass.
        max_seq_length: Texts are cut after this many tokens; None keeps what the model was saved with.
        m3_weights: Weights of the three scores of BGE-M3 (`BGEM3Scorer`); None takes the model as what its
            own files say, which is a dense one for `BAAI/bge-m3`.

    Returns:
        The scorer.

    Raises:
        ValueError: If `batch_size` is below 1, or if the teacher is one that is fitted on a corpus.
        DataError: If the model cannot be loaded, if `max_seq_length` exceeds its positions, if it is a bare
            transformer of another kind (whose mean over tokens would be no teacher), if it gives more than
            one score per pair, or if three scores are weighed of a model that has not the heads of BGE-M3.
    """
    from sentence_transformers import CrossEncoder

    from lexforge.models.load import load_encoder
    from lexforge.models.names import checked_name, model_type
    from lexforge.models.splade import build_splade
    from lexforge.models.structure import set_max_seq_length

    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; received {batch_size}")
    if name in FITTED_TEACHERS:
        raise ValueError(
            f"the teacher {name!r} is fitted on a corpus, and listed pairs have none; pass the folder or hub "
            "name of a model, or let `lexforge train --teacher` fit it"
        )
    try:
        name = checked_name(name)
        found = model_type(name)
    except (FileNotFoundError, ValueError):  # nothing is there, or a file instead of a folder
        found = "unknown"
    if found == "unknown" and m3_weights is None:
        raise DataError(
            f"the teacher {name!r} is missing or a bare transformer; pass the folder or hub name of a "
            "CrossEncoder, a SparseEncoder, a SentenceTransformer, a MultiVectorEncoder, a bare sequence "
            "classifier with one output or a bare masked language model"
        )
    try:
        if m3_weights is not None:
            return BGEM3Scorer(build_splade(name, max_seq_length=max_seq_length), m3_weights, batch_size)
        if found == "multi-vector":
            from sentence_transformers import MultiVectorEncoder

            late = MultiVectorEncoder(name)
            if max_seq_length is not None:
                set_max_seq_length(late, max_seq_length)
            return MultiVectorScorer(late, batch_size)
        if found != "cross-encoder":
            return EncoderScorer(load_encoder(name, max_seq_length), batch_size)
        model = CrossEncoder(name)
        if max_seq_length is not None:
            set_max_seq_length(model, max_seq_length)
        return CrossEncoderScorer(model, batch_size)
    except DataError:  # of a scorer: it says what is wrong with the model or with its weights
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"the teacher {name!r} cannot be loaded: {error}") from error


def texts_to_fit(documents: Sequence[str]) -> Sequence[str]:
    """Return the texts on which a teacher is fitted: of more than `LARGEST_FIT` that many, evenly spaced."""
    if len(documents) <= LARGEST_FIT:
        return documents
    return [documents[place] for place in evenly_spaced(len(documents), LARGEST_FIT)]


def teach_rows(
    teacher: Teacher,
    rows: list[dict[str, Any]] | Dataset,
    cache: Path | None,
) -> tuple[list[dict[str, Any]] | Dataset, Embeddings | None]:
    """Return the rows and what the collator looks their texts up in, so that a loss can read the teacher.

    Args:
        teacher: The teacher. BM25 looks any text up by itself. The embeddings of a dense model are computed
            once and kept. A model that scores pairs scores those of each row, which are kept as well.
        rows: Training rows under the column contract.
        cache: The folder that keeps embeddings or scores; None is a folder in the user's cache.

    Returns:
        The rows, with the scores of a teacher of pairs in their column `label`; and BM25 itself, the open
        cache of the embeddings, or None where the rows hold the scores.
    """
    if isinstance(teacher, BM25Teacher):
        return rows, teacher
    if not isinstance(teacher, PairScorer):
        return rows, TeacherCache.build_for_rows(teacher, rows, cache)
    return label_rows(rows, score_pairs(teacher, row_pairs(rows), cache)), None
