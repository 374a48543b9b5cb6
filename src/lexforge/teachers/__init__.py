"""Teachers: what scores texts or pairs of them for a student to learn from, and the cache of what they say.

Importing this room loads neither scikit-learn nor sentence-transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.teachers.bm25 import BM25Teacher
    from lexforge.teachers.cache import EmbeddingTeacher, TeacherCache
    from lexforge.teachers.candidates import average_in_spreads, candidate_scorer
    from lexforge.teachers.dense import SentenceTransformerTeacher
    from lexforge.teachers.load import Teacher, load_scorer, load_teacher, teach_rows
    from lexforge.teachers.options import (
        check_taught_rows,
        check_teacher,
        taught_by,
        without_single_scores,
    )
    from lexforge.teachers.pair_scores import label_rows, listed_pairs, row_pairs, score_pairs

__all__ = [
    "BM25Teacher",
    "EmbeddingTeacher",
    "SentenceTransformerTeacher",
    "Teacher",
    "TeacherCache",
    "average_in_spreads",
    "candidate_scorer",
    "check_taught_rows",
    "check_teacher",
    "label_rows",
    "listed_pairs",
    "load_scorer",
    "load_teacher",
    "row_pairs",
    "score_pairs",
    "taught_by",
    "teach_rows",
    "without_single_scores",
]

__getattr__, __dir__ = load_when_used(__name__)
