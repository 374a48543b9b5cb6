"""Teachers by name, and what a collator looks the texts of a batch up in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lexforge.common.samples import evenly_spaced
from lexforge.common.types import Embeddings
from lexforge.settings import BM25, LSA, LSA_CHAR
from lexforge.teachers.bm25 import BM25Teacher
from lexforge.teachers.cache import EmbeddingTeacher, TeacherCache
from lexforge.teachers.dense import SentenceTransformerTeacher
from lexforge.teachers.lsa import LsaTeacher
from lexforge.teachers.options import scores_pairs
from lexforge.teachers.pairs import label_rows, load_scorer, row_pairs, score_pairs
from lexforge.teachers.scorer import PairScorer

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
        dimensions = min(256, len(documents) - 1)
        return LsaTeacher.fit(documents, dimensions, analyzer="word" if name == LSA else "char_wb")
    return load_scorer(name) if scores_pairs(name) else SentenceTransformerTeacher(name)


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
