"""Rows, losses, a teacher and options of the runs that are compared on two ranks and on one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from lexforge.losses import CoSENTLoss, HCLLoss, InfoNCELoss, MoCoLoss, NWSLoss

JOINT_BATCH = 8
QUIET: dict[str, Any] = {"disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}
WORDS = (
    "list array search index query document vector sparse token model train file graph tree path node".split()
)
ROWS = [  # no text twice: batches then follow the order of the sampler, however large they are
    {
        "anchor": f"{a} {b}",
        "positive": f"the {a} of a {b} {c}",
        "negative_1": f"{c} is not {a}",
        "negative_2": f"a {b} or {c} with an error",
    }
    for a, b, c in zip(WORDS, WORDS[1:] + WORDS[:1], WORDS[2:] + WORDS[:2], strict=True)
]


LABELS = [[i % 2, (i // 2) % 2, 1 - i % 2] for i in range(len(ROWS))]
LABEL_SIMILARITY = np.array([[1, 0.2, 0], [0.2, 1, 0.1], [0, 0.1, 1]])
CONTRASTIVE = {
    "infonce": lambda model: InfoNCELoss(model, 0.3, gather_across_devices=True),
    "infonce, symmetric": lambda model: InfoNCELoss(model, 0.3, symmetric=True, gather_across_devices=True),
    "hcl": lambda model: HCLLoss(model, 0.3, 0.01, 1.0, gather_across_devices=True),
    "cosent": lambda model: CoSENTLoss(model, 5.0, gather_across_devices=True),
    "moco": lambda model: MoCoLoss(model, queue_size=20, momentum=0.6, temperature=0.3),
    "nws": lambda model: NWSLoss(model, LABEL_SIMILARITY, aggregate="mean", queue_size=20, momentum=0.6),
}


class RandomTeacher:
    """A fixed random unit vector for each text."""

    similarity = "cosine"

    def lookup(self, texts: list[str], kind: str) -> np.ndarray:
        rows = [np.random.default_rng(sum(text.encode())).normal(size=8) for text in texts]
        return np.stack([row / np.linalg.norm(row) for row in rows])


def without_dropout(model: Any) -> Any:
    """The model in training, where two passes over a batch agree."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model.train()


def exact(model: Any) -> Any:
    """The model in float64 and without dropout: only the order of sums may differ."""
    return without_dropout(model).double()


def dense_encoder(checkpoint: str) -> SentenceTransformer:
    """The tiny model in float64 without dropout: only the order of sums may differ."""
    torch.manual_seed(0)  # of the pooler, which the checkpoint lacks
    transformer = Transformer(checkpoint, max_seq_length=32)
    pooling = Pooling(transformer.get_embedding_dimension())
    return exact(SentenceTransformer(modules=[transformer, pooling], device="cpu"))
