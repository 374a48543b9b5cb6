"""NWSLoss on two ranks trains like one process with the joint batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from small_runs import dense_encoder

from lexforge.losses import NWSLoss, loss_tensors
from lexforge.losses.functional import compute_label_pair_similarity
from lexforge.runs import RunStateCallback

STEPS, JOINT_BATCH, LABELS = 4, 8, 5
WORDS = "list array search index query document vector sparse token model train file graph tree".split()
# The queue of 20 wraps in the third step.
SETTINGS = {
    "mean": {"aggregate": "mean", "queue_size": 20},
    "max, without keys": {"aggregate": "max", "queue_size": 20, "use_keys": False, "alpha": 0.6},
}


def train(checkpoint: str, folder: Path, setting: str, batch_size: int):
    """Model and loss after some steps, in float64 without dropout: only the order of sums may differ."""
    model = dense_encoder(checkpoint)
    rows = STEPS * JOINT_BATCH
    generator = torch.Generator().manual_seed(3)
    labels = (torch.rand(rows, LABELS, generator=generator) < 0.3).long()
    torch.manual_seed(7 + (dist.get_rank() if dist.is_initialized() else 0))  # prototypes differ by rank
    similarity = compute_label_pair_similarity(labels, "jaccard")
    loss = NWSLoss(model, similarity, momentum=0.5, temperature=0.3, **SETTINGS[setting]).double()
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=batch_size,
        optim="sgd",
        learning_rate=0.05,
        max_grad_norm=0.5,
        dataloader_drop_last=True,
        dataloader_pin_memory=False,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    texts = [
        f"{WORDS[row % 14]} {WORDS[(3 * row * row) % 13]} {WORDS[(7 * row) % 11]}" for row in range(rows)
    ]
    SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"text": texts, "label": labels.tolist()}),
        loss=loss,
        callbacks=[RunStateCallback(loss)],
    ).train()
    state = {name: tensor.detach().clone() for name, tensor in loss_tensors(loss).items()}
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}, state


def on_each_rank(checkpoint: str, folder: Path) -> dict[str, Any]:
    """The same runs on the share of a rank."""
    share = JOINT_BATCH // dist.get_world_size()
    return {name: train(checkpoint, folder / "run", name, share) for name in SETTINGS}


@pytest.mark.parametrize("setting", SETTINGS)
def test_two_ranks_equal_one_process_with_the_joint_batch(
    setting: str, on_ranks: Callable[..., list[Any]], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Encoder, prototypes, queue with its labels and moving average after four steps, on both ranks."""
    weights, state = train(str(tiny_checkpoint), tmp_path, setting, JOINT_BATCH)
    assert int(state["queue.enqueued"]) == STEPS * JOINT_BATCH
    assert state["queue.labels"].any()
    for joint_weights, joint_state in (results[setting] for results in on_ranks("on_each_rank")):
        # float64 throughout; only the order of sums and the padding of a batch differ
        torch.testing.assert_close(joint_weights, weights, rtol=1e-7, atol=1e-10)
        torch.testing.assert_close(joint_state, state, rtol=1e-7, atol=1e-10)
