"""Position embeddings that a training leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder
from torch import nn

from lexforge.losses import NeuralSparseLoss
from lexforge.models.structure import freeze_positions
from lexforge.training import SpladeTrainer, TrainingSettings


@pytest.mark.parametrize("train_positions", [False, True])
def test_position_embeddings_move_only_if_they_may(
    tiny_splade: SparseEncoder, tmp_path: Path, train_positions: bool
) -> None:
    """And whoever trains the model next decides anew."""
    (positions,) = [
        parameter for name, parameter in tiny_splade.named_parameters() if "position_embeddings" in name
    ]
    before = positions.detach().clone()
    others = [one.detach().clone() for one in tiny_splade.parameters() if one is not positions]
    arguments = TrainingSettings(steps=2, batch_size=2, gradient_accumulation_steps=1, precision="fp32")
    trainer = SpladeTrainer(
        tiny_splade,
        NeuralSparseLoss(tiny_splade, distillation_weight=0.0),
        args=arguments.arguments(tmp_path, save_strategy="no", disable_tqdm=True),
        train_dataset=Dataset.from_list(
            [{"anchor": f"sort {n}", "positive": f"sorts {n}"} for n in range(8)]
        ),
        train_positions=train_positions,
    )
    trainer.create_optimizer()  # as a trainer does that tries smaller batches: what it froze is thawed too
    for _ in range(2):
        trainer.train()
        assert positions.requires_grad
        assert train_positions is not torch.equal(before, positions)
    after = [one for one in tiny_splade.parameters() if one is not positions]
    assert not all(map(torch.equal, others, after))


def test_only_what_had_a_gradient_is_returned(tiny_splade: SparseEncoder) -> None:
    """What its owner had frozen stays frozen after training; a model without positions is left alone."""
    (frozen,) = freeze_positions(tiny_splade)
    assert not frozen.requires_grad
    assert freeze_positions(tiny_splade) == []
    assert freeze_positions(nn.Linear(2, 2)) == []
