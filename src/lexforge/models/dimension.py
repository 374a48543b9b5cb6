"""The width of the embeddings that a model gives in training."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
    features = {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in preprocess(["a"]).items()
    }
    modes = [(module, module.training) for module in model.modules()]
    with torch.no_grad():
        width = model.eval()(features)["sentence_embedding"].shape[-1]
    for module, training in modes:
        module.training = training
    return int(width)
