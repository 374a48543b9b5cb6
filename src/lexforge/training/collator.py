"""Collators that put the texts of the rows and the teacher's embeddings beside the tokens of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
import torch
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sparse_encoder import SparseEncoderDataCollator

from lexforge.common.types import Embeddings
from lexforge.data.columns import text_kind
from lexforge.losses.base import TEACHER_KEY
from lexforge.runs.finite import ROWS_KEY, texts_of


class NamedRows:
    """Mixed into a collator, it adds the texts of each row under `ROWS_KEY`, so that errors can name them."""

    @classmethod
    def like(cls, stock: Any, **others: Any) -> Self:
        """Make a collator with the settings of another one.

        Args:
            stock: A collator of sentence-transformers.
            **others: Further fields of this class.

        Returns:
            The collator.
        """
        settings = {field.name: getattr(stock, field.name) for field in fields(stock) if field.init}
        return cls(**settings, **others)

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Collate rows of texts (and labels) into one batch."""
        # The class that this one is mixed into has the method; mypy does not see it.
        batch: dict[str, Any] = super().__call__(features)  # type: ignore[misc]
        batch[ROWS_KEY] = [texts_of(row) for row in features]
        return batch


@dataclass
class DenseCollator(NamedRows, SentenceTransformerDataCollator):
    """The collator of sentence-transformers, and the texts of each row under `ROWS_KEY`."""


@dataclass
class SpladeCollator(NamedRows, SparseEncoderDataCollator):
    """The collator of sentence-transformers, the texts of each row under `ROWS_KEY`, and the teacher.

    For every text column the batch holds `<column>_teacher_embedding [B, D]`. The Trainer groups the keys of
    a batch by column, so the embeddings reach the loss as `features[i]["teacher_embedding"]`; the rows reach
    only the trainer.

    Args:
        teacher: Looks the embeddings up by text; None adds none.
    """

    teacher: Embeddings | None = field(default=None, repr=False)

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Collate rows of texts (and labels) into one batch."""
        batch = super().__call__(features)
        if self.teacher is not None:
            for column in [key for key in features[0] if f"{key}_input_ids" in batch]:
                rows = self.teacher.lookup([row[column] for row in features], text_kind(column))
                batch[f"{column}_{TEACHER_KEY}"] = torch.from_numpy(np.array(rows))
        return batch
