"""Encode a large batch in the memory of a small one (docs/losses.md, section 16)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from sentence_transformers.base.losses.merged_forward import embed_columns
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

Features = dict[str, Any]
MiniBatchSize = int | Literal["auto"] | None
"""Rows that are encoded at once; "auto" for as many as fit into memory, None for the whole batch."""


def embed_in_mini_batches(
    model: nn.Module, columns: list[Features], mini_batch_size: int | None
) -> list[Tensor]:
    """Encode the columns; with gradients, keep the activations of one mini-batch at a time.

    In the forward pass each mini-batch is encoded and only its embeddings are kept. The loss of the whole
    batch is computed on them. In the backward pass autograd brings the gradient of the embeddings to each
    mini-batch in turn, which is encoded again, with the same random numbers and the same autocast, and
    passes the gradient on. So the gradient is that of the whole batch, for one more forward pass of the
    encoder. This is the gradient cache of Gao et al., done by PyTorch's checkpoint without reentrance. All
    mini-batches belong to one backward pass, so DistributedDataParallel reduces each parameter once.

    Args:
        model: The encoder, wrapped in DistributedDataParallel or not; its forward writes
            `sentence_embedding`.
        columns: One dict per text column, with what the model reads: tensors of B rows, and others that all
            rows share.
        mini_batch_size: Rows per mini-batch; None, or a batch that is no larger, is encoded at once.

    Returns:
        One `[B, D]` float tensor per column.

    Raises:
        ValueError: If mini-batches are wanted of columns that do not hold one row of tokens per text.

    Source: Gao et al. 2021 (arXiv 2101.06983); checkpoints: Chen et al. 2016 (arXiv 1604.06174).
    """
    if mini_batch_size is None or not columns:
        return embed_columns(model, columns)
    ids = columns[0].get("input_ids")
    if not can_be_cut(columns):
        raise ValueError(
            "mini_batch_size needs columns with input_ids [B, L], one row per text; received "
            + (f"shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else "none")
        )
    if len(columns[0]["input_ids"]) <= mini_batch_size:
        return embed_columns(model, columns)
    return [_embed_column(model, column, mini_batch_size) for column in columns]


def can_be_cut(columns: list[Features]) -> bool:
    """Say whether columns hold one row of tokens per text, so that some of their rows are a batch, too.

    Args:
        columns: One dict per text column.

    Returns:
        False for columns without tokens, and for texts that are joined to one row without padding.
    """
    tensors = [column.get("input_ids") for column in columns]
    joined = any("cu_seq_lens_q" in column for column in columns)
    return not joined and all(isinstance(ids, Tensor) and ids.dim() == 2 for ids in tensors)


def some_rows(column: Features, part: slice | Tensor) -> Features:
    """Take some rows of a column.

    Args:
        column: What the model reads of B texts, with `input_ids [B, L]`.
        part: Which rows: a slice, or an int64 tensor of their numbers.

    Returns:
        The rows of each tensor whose first dimension is B; anything else as it is.
    """
    rows = len(column["input_ids"])

    def is_of_rows(value: Any) -> bool:
        return isinstance(value, Tensor) and value.dim() > 0 and len(value) == rows

    return {key: value[part] if is_of_rows(value) else value for key, value in column.items()}


def _embed_column(model: nn.Module, column: Features, mini_batch_size: int) -> Tensor:
    pieces = []
    for start in range(0, len(column["input_ids"]), mini_batch_size):
        piece = some_rows(column, slice(start, start + mini_batch_size))
        if torch.is_grad_enabled():
            # The features are an argument, because checkpoint keeps the random state of the devices of its
            # tensor arguments alone.
            pieces.append(checkpoint(_Encode(model), piece, use_reentrant=False))
        else:
            pieces.append(_Encode(model)(piece))
    return torch.cat(pieces)


class _Encode:
    """Encodes one mini-batch, the first time by the model as it is wrapped, later by the model itself.

    DistributedDataParallel prepares for a backward pass in its forward. The second encoding happens within
    that backward pass, where preparing for another one would count gradients twice.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, features: Features) -> Tensor:
        model = self.model
        if isinstance(model, DistributedDataParallel):
            self.model = model.module
        return model(dict(features))["sentence_embedding"]
