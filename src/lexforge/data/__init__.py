"""Files and hub data sets become queries, documents, judgements and training columns.

Importing this subpackage loads neither `datasets`, `stopwordsiso` nor sentence-transformers: the functions
that need them import them. Machines that only run losses and models may lack the first two, and the last
takes seconds to load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.common.idf import corpus_idf, document_frequency
    from lexforge.common.types import DataError
    from lexforge.data.columns import validate_columns
    from lexforge.data.formats import detect_rows
    from lexforge.data.formats.beir import load_queries, load_teacher_scores, write_teacher_scores
    from lexforge.data.formats.docstrings import load_docstrings
    from lexforge.data.library import Library, load_library
    from lexforge.data.multilabel import MultiLabelData, load_label_sets, load_texts, multi_hot
    from lexforge.data.retrieval_data import RetrievalData, sample_corpus
    from lexforge.data.rows import digests, read_training_rows, rows_to_dataset, write_training_rows
    from lexforge.data.source import (
        TrainingData,
        check_source,
        load_documents,
        load_retrieval_data,
        load_training_data,
    )
    from lexforge.data.stopwords import check_language, stopword_ids, stopword_summary
    from lexforge.data.sts import load_sts
    from lexforge.settings import SourceOptions

__all__ = [
    "DataError",
    "Library",
    "MultiLabelData",
    "RetrievalData",
    "SourceOptions",
    "TrainingData",
    "check_language",
    "check_source",
    "corpus_idf",
    "detect_rows",
    "digests",
    "document_frequency",
    "load_docstrings",
    "load_documents",
    "load_label_sets",
    "load_library",
    "load_queries",
    "load_retrieval_data",
    "load_sts",
    "load_teacher_scores",
    "load_texts",
    "load_training_data",
    "multi_hot",
    "read_training_rows",
    "rows_to_dataset",
    "sample_corpus",
    "stopword_ids",
    "stopword_summary",
    "validate_columns",
    "write_teacher_scores",
    "write_training_rows",
]

__getattr__, __dir__ = load_when_used(__name__)
