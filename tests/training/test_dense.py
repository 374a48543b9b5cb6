"""The trainer of dense encoders."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments

from lexforge.losses import EmbeddingLoss, HCLLoss, InfoNCELoss, MoCoLoss, loss_tensors
from lexforge.models import build_dense
from lexforge.runs import NonFiniteError
from lexforge.training import DenseTrainer, TrainingSettings

ROWS = {"anchor": ["sort a list", "read a file", "search text", "save a model"] * 2}


def moco(model: SentenceTransformer) -> EmbeddingLoss:
    return MoCoLoss(model, queue_size=8)


def make_trainer(
    checkpoint: Path, folder: Path, steps: int, make_loss: Callable[..., EmbeddingLoss] = moco
) -> DenseTrainer:
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
    return DenseTrainer(model, make_loss(model), args=arguments, train_dataset=rows)


def test_a_queue_resumes_from_a_checkpoint_in_another_folder(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The queue comes from the checkpoint that was asked for, not from one of that step in the new run."""
    whole = make_trainer(tiny_checkpoint, tmp_path / "whole", 4)
    whole.train()
    shutil.move(tmp_path / "whole" / "checkpoint-2", tmp_path / "moved")
    resumed = make_trainer(tiny_checkpoint, tmp_path / "elsewhere", 4)
    resumed.train(resume_from_checkpoint=str(tmp_path / "moved"))
    torch.testing.assert_close(loss_tensors(resumed.loss), loss_tensors(whole.loss), rtol=0, atol=0)
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)


def test_a_finished_run_resumed_has_the_queue_that_training_left(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Killed while it evaluated: no further step is taken, but what the loss carries comes back."""
    whole = make_trainer(tiny_checkpoint, tmp_path, 4)
    whole.train()
    resumed = make_trainer(tiny_checkpoint, tmp_path, 4)
    resumed.train(resume_from_checkpoint=True)
    assert int(resumed.loss.queue.enqueued) == 8
    torch.testing.assert_close(loss_tensors(resumed.loss), loss_tensors(whole.loss), rtol=0, atol=0)
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make_loss", "what"),
    [(InfoNCELoss, "the loss"), (HCLLoss, "the loss"), (moco, "the keys of the queue")],
    ids=["infonce", "hcl", "moco"],
)
def test_where_numbers_break_the_rows_are_named(
    make_loss: Callable[..., EmbeddingLoss], what: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Whatever breaks first; the queue itself refuses what is not finite."""
    trainer = make_trainer(tiny_checkpoint, tmp_path, 4, make_loss)

    def spoil(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        output["token_embeddings"] = output["token_embeddings"] * float("nan")

    encoders = [trainer.model]
    if isinstance(trainer.loss, MoCoLoss):
        encoders.append(trainer.loss.momentum_encoder.average)
    for encoder in encoders:
        encoder[0].register_forward_hook(spoil)
    with pytest.raises(
        NonFiniteError, match=rf"^{what} became NaN or infinite with rows \d, \d of the training data \('"
    ):
        trainer.train()
