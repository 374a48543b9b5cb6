"""The trainer of dense encoders."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainingArguments

from lexforge.losses import MoCoLoss, loss_tensors
from lexforge.models import build_dense
from lexforge.training import DenseTrainer, TrainingSettings

ROWS = {"anchor": ["sort a list", "read a file", "search text", "save a model"] * 2}


def make_trainer(checkpoint: Path, folder: Path, steps: int) -> DenseTrainer:
    torch.manual_seed(0)
    model = build_dense(checkpoint, max_seq_length=8, device="cpu")
    settings = TrainingSettings(
        steps=steps, batch_size=2, gradient_accumulation_steps=1, precision="fp32", save_steps=2
    )
    arguments = settings.arguments(
        folder,
        SentenceTransformerTrainingArguments,
        batch_sampler="batch_sampler",
        lr_scheduler_type="constant",
    )
    rows = Dataset.from_dict(ROWS | {"positive": [text + " of words" for text in ROWS["anchor"]]})
    return DenseTrainer(model, MoCoLoss(model, queue_size=8), args=arguments, train_dataset=rows)


def test_a_queue_resumes_from_a_checkpoint_in_another_folder(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The queue comes from the checkpoint that was asked for, not from one of that step in the new run."""
    whole = make_trainer(tiny_checkpoint, tmp_path / "whole", 4)
    whole.train()
    shutil.move(tmp_path / "whole" / "checkpoint-2", tmp_path / "moved")
    resumed = make_trainer(tiny_checkpoint, tmp_path / "elsewhere", 4)
    resumed.train(resume_from_checkpoint=str(tmp_path / "moved"))
    torch.testing.assert_close(loss_tensors(resumed.loss), loss_tensors(whole.loss), rtol=0, atol=0)
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
