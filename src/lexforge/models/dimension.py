"""The width of the embeddings that a model gives in training."""

from __future__ import annotations

import torch
from sentence_transformers.util import batch_to_device
from torch import nn

from lexforge.common.evaluation_mode import evaluation_mode


def embedding_dimension(model: nn.Module) -> int:
    """Return the width of the embeddings that a model's forward gives, seen from one text.

    `get_embedding_dimension` of sentence-transformers does not say it: before its first use it returns the
    hidden size of a SPLADE model, and it counts a truncation that only `encode` applies.

    Args:
        model: A `SentenceTransformer` or `SparseEncoder`.

    Returns:
        D, the number of columns of `sentence_embedding`.

    Raises:
        ValueError: If the model takes no text.
    """
    preprocess = getattr(model, "preprocess", None)
    if preprocess is None:
        raise ValueError(
            "the width of embeddings is read from a sentence-transformers model that embeds texts; received "
            f"{type(model).__name__}"
        )
    device = next(model.parameters()).device
    with evaluation_mode(model), torch.no_grad():
        return int(model(batch_to_device(preprocess(["a"]), device))["sentence_embedding"].shape[-1])
