"""Token batches with the teacher's embeddings and the names of their rows beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from sentence_transformers.sparse_encoder import SparseEncoderDataCollator

from lexforge.losses.base import TEACHER_KEY
from lexforge.training.finite import ROWS_KEY, texts_of


class TeacherEmbeddings(Protocol):
    """Texts -> `[N, D]` float array; what a `lexforge.data.TeacherCache` is."""

    def __getitem__(self, texts: Sequence[str]) -> np.ndarray: ...


@dataclass
class SpladeCollator(SparseEncoderDataCollator):
    """The collator of sentence-transformers plus `<column>_teacher_embedding [B, D]` for every text column
    and, under `ROWS_KEY`, the texts of each row, by which an error names the batch.

    The Trainer groups every batch key by its column, so the embeddings reach the loss as
    `features[i]["teacher_embedding"]`; the rows reach the trainer alone.

    Args:
        teacher: Where the embeddings come from; None adds nothing.
    """

    teacher: TeacherEmbeddings | None = field(default=None, repr=False)

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Collate rows of texts (and labels) into one batch."""
        batch = super().__call__(features)
        batch[ROWS_KEY] = [texts_of(row) for row in features]
        if self.teacher is not None:
            for column in [key for key in features[0] if f"{key}_input_ids" in batch]:
                rows = self.teacher[[row[column] for row in features]]
                batch[f"{column}_{TEACHER_KEY}"] = torch.from_numpy(np.array(rows))
        return batch
