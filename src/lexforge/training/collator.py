"""Collators that put the texts' identities, the teacher's embeddings and the rows beside the tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
import torch
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sparse_encoder import SparseEncoderDataCollator

from lexforge.common.text_identity import NO_TEXT, text_identity
from lexforge.common.types import DataError, Embeddings
from lexforge.data.columns import RELEVANT
from lexforge.losses.base import IDENTITY_KEY, RELEVANT_KEY, TEACHER_KEY
from lexforge.models import column_prompts, saved_prompt
from lexforge.runs.finite import ROWS_KEY, texts_of
from lexforge.training.columns import DATASET_NAME, kinds_of_columns, loss_columns


@dataclass
class NamedRows:
    """Mixed into a collator, it adds to a batch what the losses and the errors read of its texts.

    - `<column>_text_identity` `[B]` int64, for every text column.
    - `<first column>_relevant` `[B, M]` int64, where the rows have the column `relevant` of
      `lexforge.data.columns`: the documents that are judged relevant to each anchor, sorted, M being the
      longest list of the batch and shorter ones filled up with `NO_TEXT`.
    - The texts of each row under `ROWS_KEY`, so that an error can name them.

    The texts get the prompts that the model was saved with (`lexforge.models.column_prompts`), unless the
    training arguments name prompts.

    The Trainer groups the keys of a batch by column, so a loss finds the first two in `features`.

    Args:
        encoder: The model whose saved prompts are used; None uses none.
    """

    encoder: Any = field(default=None, repr=False, kw_only=True)

    @classmethod
    def like(cls, stock: Any, **others: Any) -> Self:
        """Make a collator with the settings of another one.

        Args:
            stock: A collator of sentence-transformers. Prompts that it has, from the training arguments,
                replace those of the encoder.
            **others: Further fields of this class.

        Returns:
            The collator.
        """
        settings = {field.name: getattr(stock, field.name) for field in fields(stock) if field.init}
        # The batch sampler without duplicates leaves these columns out of its comparison: two rows with the
        # same judged documents may stand in one batch.
        settings["valid_label_columns"] = [*settings["valid_label_columns"], RELEVANT]
        if stock.prompts:
            others["encoder"] = None
        return cls(**settings, **others)

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Collate rows of texts (and labels) into one batch."""
        texts = [{name: value for name, value in row.items() if name != RELEVANT} for row in features]
        labels: list[str] = vars(self)["valid_label_columns"]  # a field of the class that this is mixed into
        columns = [name for name in loss_columns(texts[0], labels) if isinstance(texts[0][name], str)]
        if self.encoder is not None:
            vars(self)["prompts"] = self.saved_prompts(columns)  # that class reads it for each batch
        # These come first, because they name the column of a cell that is none.
        added = {
            f"{name}_{IDENTITY_KEY}": torch.tensor(
                [text_identity(_text(name, row[name])) for row in texts], dtype=torch.int64
            )
            for name in columns
        }
        if RELEVANT in features[0]:
            added[f"{columns[0]}_{RELEVANT_KEY}"] = _padded([row[RELEVANT] for row in features])
        # The class that this one is mixed into has the method; mypy does not see it.
        batch: dict[str, Any] = super().__call__(texts)  # type: ignore[misc]
        batch |= added
        batch[ROWS_KEY] = [
            texts_of({name: value for name, value in row.items() if name != DATASET_NAME}) for row in texts
        ]
        return batch

    def saved_prompts(self, columns: list[str]) -> dict[str, str]:
        """The prompt that the model was saved with for each text column; names say what a column holds."""
        return column_prompts(self.encoder, columns)


@dataclass
class DenseCollator(NamedRows, SentenceTransformerDataCollator):
    """The collator of sentence-transformers, and what `NamedRows` adds."""


@dataclass
class SpladeCollator(NamedRows, SparseEncoderDataCollator):
    """The collator of sentence-transformers, what `NamedRows` adds, and the teacher.

    For every text column the batch holds `<column>_teacher_embedding [B, D]`, which reaches the loss as
    `features[i]["teacher_embedding"]`.

    Args:
        teacher: Looks the embeddings up by text; None adds none.
    """

    teacher: Embeddings | None = field(default=None, repr=False)

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Collate rows of texts (and labels) into one batch."""
        batch = super().__call__(features)
        if self.teacher is not None:
            columns = [key for key in features[0] if f"{key}_input_ids" in batch]
            for column, kind in kinds_of_columns(columns).items():
                rows = self.teacher.lookup([row[column] for row in features], kind)
                batch[f"{column}_{TEACHER_KEY}"] = torch.from_numpy(np.array(rows))
        return batch

    def saved_prompts(self, columns: list[str]) -> dict[str, str]:
        """The prompt that the model was saved with for each text column; the first holds the queries."""
        return {
            column: saved_prompt(self.encoder, kind) for column, kind in kinds_of_columns(columns).items()
        }


def _text(column: str, value: object) -> str:
    if not isinstance(value, str):
        raise DataError(f"column {column!r}: expected text in every row; received {value!r}")
    return value


def _padded(lists: list[list[int]]) -> torch.Tensor:
    """Lists of identities as sorted rows of one `[B, M]` int64 tensor, filled up with `NO_TEXT`."""
    if wrong := [values for values in lists if isinstance(values, str) or not hasattr(values, "__len__")]:
        raise DataError(
            f"column {RELEVANT!r}: expected a list of identities of texts in every row; received "
            f"{wrong[0]!r}. A column that means something else needs another name"
        )
    longest = max(map(len, lists), default=0)
    rows = [sorted(values) + [NO_TEXT] * (longest - len(values)) for values in lists]
    return torch.tensor(rows, dtype=torch.int64).reshape(len(lists), longest)
