"""A trainer small enough for every test of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder

from lexforge.losses import NeuralSparseLoss
from lexforge.settings import V26
from lexforge.training import SpladeTrainer, TrainingSettings

WORDS = "list array search index query document vector sparse token model train file graph tree".split()


class RandomTeacher:
    """A fixed random unit vector for each text."""

    def lookup(self, texts: list[str], kind: str) -> np.ndarray:
        rows = [np.random.default_rng(sum(text.encode())).normal(size=8) for text in texts]
        return np.stack([row / np.linalg.norm(row) for row in rows]).astype(np.float16)


@pytest.fixture(scope="session")
def training_rows() -> list[dict[str, str]]:
    """Twelve rows of a query, a positive and a hard negative."""
    return [
        {"anchor": f"{a} {b}", "positive": f"the {a} of a {b} {c}", "negative_1": f"{c} is not {a}"}
        for a, b, c in zip(WORDS, WORDS[1:], WORDS[2:], strict=False)
    ]


@pytest.fixture(scope="session")
def make_trainer(training_rows: list[dict[str, str]]) -> Callable[..., SpladeTrainer]:
    """Model, folder -> a trainer of V26 with every term, six steps, a checkpoint every second."""

    def make(model: SparseEncoder, folder: Path, **others: Any) -> SpladeTrainer:
        model.similarity_fn_name = V26.loss.similarity
        loss = NeuralSparseLoss(
            model,
            penalty_weights=torch.linspace(0.1, 3, len(model.tokenizer)),
            special_token_ids=model.tokenizer.all_special_ids,
            **V26.loss.arguments(),
        )
        settings = TrainingSettings(
            steps=6,
            batch_size=4,
            gradient_accumulation_steps=others.pop("gradient_accumulation_steps", 1),
            learning_rate=1e-3,
            precision="fp32",
            save_steps=2,
            save_total_limit=None,
            logging_steps=1,
        )
        given = {"train_dataset": Dataset.from_list(training_rows), "phases": V26.loss.phases} | others
        arguments = settings.arguments(folder, disable_tqdm=True, **given.pop("arguments", {}))
        return SpladeTrainer(model, loss, args=arguments, teacher=RandomTeacher(), **given)

    return make


@pytest.fixture
def fresh(tiny_checkpoint: Path) -> Callable[[], SparseEncoder]:
    """Makes the same encoder again and again."""
    from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

    def make() -> SparseEncoder:
        transformer = Transformer(str(tiny_checkpoint), transformer_task="fill-mask", max_seq_length=32)
        return SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")

    return make
