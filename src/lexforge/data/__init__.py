"""Files and hubs turned into columns."""

from lexforge.data.beir import load_beir, load_teacher_scores
from lexforge.data.columns import judged_negatives, training_rows, validate_columns
from lexforge.data.docstrings import load_docstrings
from lexforge.data.hub import load_hub
from lexforge.data.retrieval_data import DataError, RetrievalData, hold_out

__all__ = [
    "DataError",
    "RetrievalData",
    "hold_out",
    "judged_negatives",
    "load_beir",
    "load_docstrings",
    "load_hub",
    "load_teacher_scores",
    "training_rows",
    "validate_columns",
]
