"""Two ranks train in bf16 twice, and the model is in float32 after each training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from small_runs import QUIET, ROWS

from lexforge.losses import NeuralSparseLoss
from lexforge.training import SpladeTrainer, TrainingSettings


def train_twice(checkpoint: str, folder: Path) -> list[dict[bool, set[torch.dtype]]]:
    """For each training: the formats of the encoder's products within it (True) and after it (False)."""
    transformer = Transformer(checkpoint, transformer_task="fill-mask", max_seq_length=32)
    model = SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")
    formats: dict[bool, set[torch.dtype]] = {}

    def note(module: torch.nn.Module, args: Any, output: torch.Tensor) -> None:
        formats.setdefault(module.training, set()).add(output.dtype)

    transformer.model.bert.encoder.layer[0].intermediate.dense.register_forward_hook(note)
    settings = TrainingSettings(steps=1, batch_size=4, gradient_accumulation_steps=1, precision="fp32")
    trainer = SpladeTrainer(
        model,
        NeuralSparseLoss(model, distillation_weight=0.0),
        args=settings.arguments(folder / "run", **QUIET, bf16=True),
        train_dataset=Dataset.from_list(ROWS),
    )
    found = []
    for _ in range(2):
        trainer.train()
        model.encode(["a tree"])
        found.append(dict(formats))
        formats.clear()
    return found


def test_each_training_of_two_ranks_has_its_autocast(on_ranks: Callable[..., list[Any]]) -> None:
    """DistributedDataParallel is kept for the second training, and would hold a model without autocast."""
    once = {True: {torch.bfloat16}, False: {torch.float32}}
    assert on_ranks("train_twice", 2) == [[once, once], [once, once]]
