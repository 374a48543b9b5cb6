"""Batches of texts with like numbers of tokens, each text being turned into tokens once.

sentence-transformers sorts texts by their characters before it makes batches. A text with many numbers or
names, or in another script, has more tokens than others of its length, and pads its whole batch to them:
by 5 to 49 % of the tokens of eight small collections, against 1 to 8 % for batches by tokens (128 tokens
at most, batches of 32).
"""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.util import select_max_active_dims
from torch import Tensor

from lexforge.common.types import TextKind
from lexforge.models.prompts import saved_prompt


def encode_by_tokens(
    model: SparseEncoder, texts: list[str], kind: TextKind, batch_size: int
) -> tuple[Tensor, list[int]] | None:
    """Encode texts on a processor in batches of like numbers of tokens, with the steps of `model.encode`.

    Args:
        model: A sparse encoder.
        texts: At least one text.
        kind: Whether they are queries or documents.
        batch_size: Number of texts per forward pass.

    Returns:
        Sparse `[n, V]`, and for each row the place of its text, most tokens first. None where the model must
        make its own batches: it is not on a processor, spreads its work over several, or its features are
        something else than one row of tokens per text.
    """
    if model.device.type != "cpu" or getattr(model, "_distributed_inference", None) is not None:
        return None
    model.eval()
    features = model.preprocess(texts, prompt=saved_prompt(model, kind), task=kind)
    mask = features.get("attention_mask")
    tensors = [value for value in features.values() if isinstance(value, Tensor)]
    if not isinstance(mask, Tensor) or any(each.shape != (len(texts), mask.shape[-1]) for each in tensors):
        return None
    limit = model.max_active_dims
    options: dict[str, Any] = {"task": kind} | ({} if limit is None else {"max_active_dims": limit})
    order = mask.sum(1).argsort(descending=True, stable=True)  # [n]
    rows = []
    for members in order.split(batch_size):
        # Features [b, l], without the padding that only longer texts of other batches need.
        used = mask[members].any(0).nonzero().flatten().tolist() or [0]
        columns = slice(used[0], used[-1] + 1)
        batch = {
            name: value[members, columns] if isinstance(value, Tensor) else value
            for name, value in features.items()
        }
        with torch.inference_mode():
            vectors = model(batch, **options)["sentence_embedding"]  # [b, V]
            if limit is not None:
                vectors = select_max_active_dims(vectors, max_active_dims=limit)
            rows.append(vectors.to_sparse())
    return torch.cat(rows), order.tolist()
