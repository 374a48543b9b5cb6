"""Files and hub data sets become queries, documents, judgements and training columns.

Importing this room loads neither `datasets`, `stopwordsiso`, scikit-learn nor sentence-transformers: the
functions that need them import them. Machines that only run losses and models may lack the first two, and the
others take seconds to load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.common.cache import cache_folder
    from lexforge.common.idf import corpus_idf, document_frequency
    from lexforge.data.checks import check_teacher
    from lexforge.data.columns import validate_columns
    from lexforge.data.digest import digests
    from lexforge.data.formats.beir import (
        load_beir,
        load_corpus,
        load_queries,
        load_teacher_scores,
        write_teacher_scores,
    )
    from lexforge.data.formats.docstrings import load_docstrings
    from lexforge.data.formats.hub import load_hub
    from lexforge.data.formats.msmarco import load_msmarco
    from lexforge.data.multilabel import (
        MultiLabelData,
        load_docstring_topics,
        load_label_sets,
        load_multilabel,
        multi_hot,
    )
    from lexforge.data.negatives import (
        NegativeMiner,
        NegativeRule,
        mined_columns,
        read_training_rows,
        score_by_teacher,
        write_training_rows,
    )
    from lexforge.data.pair_data import PairData
    from lexforge.data.pair_scores import label_rows, listed_pairs, load_scorer, row_pairs, score_pairs
    from lexforge.data.retrieval_data import DataError, RetrievalData, hold_out, sample_corpus
    from lexforge.data.rows import judged_negatives, rows_to_dataset, training_rows
    from lexforge.data.source import (
        TrainingData,
        check_source,
        load_documents,
        load_retrieval_data,
        load_training_data,
    )
    from lexforge.data.stopwords import check_language, stopword_ids, stopword_summary
    from lexforge.data.sts import load_sts
    from lexforge.data.teacher import (
        LsaTeacher,
        SentenceTransformerTeacher,
        TeacherCache,
        check_labelled_rows,
        check_teacher_options,
        load_teacher,
        teacher_name,
    )
    from lexforge.settings import MultiLabelOptions, SourceOptions, StsOptions

__all__ = [
    "DataError",
    "LsaTeacher",
    "MultiLabelData",
    "MultiLabelOptions",
    "NegativeMiner",
    "NegativeRule",
    "PairData",
    "RetrievalData",
    "SentenceTransformerTeacher",
    "SourceOptions",
    "StsOptions",
    "TeacherCache",
    "TrainingData",
    "cache_folder",
    "check_labelled_rows",
    "check_language",
    "check_source",
    "check_teacher",
    "check_teacher_options",
    "corpus_idf",
    "digests",
    "document_frequency",
    "hold_out",
    "judged_negatives",
    "label_rows",
    "listed_pairs",
    "load_beir",
    "load_corpus",
    "load_docstring_topics",
    "load_docstrings",
    "load_documents",
    "load_hub",
    "load_label_sets",
    "load_msmarco",
    "load_multilabel",
    "load_queries",
    "load_retrieval_data",
    "load_scorer",
    "load_sts",
    "load_teacher",
    "load_teacher_scores",
    "load_training_data",
    "mined_columns",
    "multi_hot",
    "read_training_rows",
    "row_pairs",
    "rows_to_dataset",
    "sample_corpus",
    "score_by_teacher",
    "score_pairs",
    "stopword_ids",
    "stopword_summary",
    "teacher_name",
    "training_rows",
    "validate_columns",
    "write_teacher_scores",
    "write_training_rows",
]

__getattr__, __dir__ = load_when_used(__name__)
