"""Files and hubs turned into columns."""

from lexforge.data.beir import load_beir, load_teacher_scores
from lexforge.data.cache import cache_folder
from lexforge.data.columns import judged_negatives, training_rows, validate_columns
from lexforge.data.docstrings import load_docstrings
from lexforge.data.hub import load_hub
from lexforge.data.idf import corpus_idf, document_frequency, stopword_ids
from lexforge.data.retrieval_data import DataError, RetrievalData, hold_out
from lexforge.data.source import load_retrieval_data
from lexforge.data.teacher import LsaTeacher, SentenceTransformerTeacher, TeacherCache, load_teacher

__all__ = [
    "DataError",
    "LsaTeacher",
    "RetrievalData",
    "SentenceTransformerTeacher",
    "TeacherCache",
    "cache_folder",
    "corpus_idf",
    "document_frequency",
    "hold_out",
    "judged_negatives",
    "load_beir",
    "load_docstrings",
    "load_hub",
    "load_retrieval_data",
    "load_teacher",
    "load_teacher_scores",
    "stopword_ids",
    "training_rows",
    "validate_columns",
]
