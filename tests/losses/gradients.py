"""A small batch with a teacher, and the parts and gradients of a loss on it."""

from __future__ import annotations

import torch

from lexforge.losses import NeuralSparseLoss
from lexforge.losses.base import TEACHER_KEY

TEXTS = {
    "anchor": "sort a list|parse the tree|write a file|hash of a key|서울 검색|train loss|min of array",
    "positive": "sorted list|tree parser read node|open a file and its path|hash map key|검색|a model|max",
    "negative": "close the file|sum of number|search the index in a tree|graph of node|min|error|sort",
}


def batch(model, teacher: bool = True) -> list[dict]:
    features = [model.preprocess(column.split("|")) for column in TEXTS.values()]
    generator = torch.Generator().manual_seed(2)
    for column in features:
        if teacher:
            column[TEACHER_KEY] = torch.randn(7, 5, generator=generator)
    return features


def parts_and_gradients(loss, features) -> tuple[dict, dict]:
    loss.model.zero_grad()
    parts = loss(features)
    parts = parts if isinstance(parts, dict) else {"loss": parts}
    sum(parts.values()).backward()
    gradients = {name: p.grad.clone() for name, p in loss.model.named_parameters() if p.grad is not None}
    return {name: part.detach() for name, part in parts.items()}, gradients


def sparse(model, **changes) -> NeuralSparseLoss:
    return NeuralSparseLoss(
        model,
        temperature=20.0,
        triplet_margin_weight=1.0,
        margin_mse_weight=0.1,
        activation_threshold=20.0,
        penalty_weights=torch.ones(len(model.tokenizer)),
        special_token_ids=range(5),
        **changes,
    )
