"""Contrastive losses on two ranks train like one process with the joint batch, queues and prototypes too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from small_runs import dense_encoder
from torch import nn

from lexforge.losses import CoSENTLoss, HCLLoss, InfoNCELoss, MoCoLoss, loss_tensors
from lexforge.losses.base import EmbeddingLoss
from lexforge.models import is_training
from lexforge.runs import RunStateCallback

ROWS, STEPS = 6, 3
WORDS = (
    "list array search index query document vector sparse token model train file graph tree 서울 검색".split()
)


def by_dot_product(model: SentenceTransformer) -> SentenceTransformer:
    """The model as one that is searched by dot product, which a loss by dot product requires."""
    model.similarity_fn_name = "dot"
    return model


# name -> (loss of a model, number of text columns)
SETTINGS = {
    "cosent, cosine": (lambda m: CoSENTLoss(m, 5.0, gather_across_devices=True), 2),
    "cosent, dot": (lambda m: CoSENTLoss(by_dot_product(m), 0.05, gather_across_devices=True), 2),
    # One rank has whole numbers, the other fractions, as of two data sets.
    "cosent, labels of two types": (lambda m: CoSENTLoss(m, 5.0, gather_across_devices=True), 2),
    "infonce": (lambda m: InfoNCELoss(m, 0.3, gather_across_devices=True), 4),
    "infonce, symmetric": (lambda m: InfoNCELoss(m, 0.3, symmetric=True, gather_across_devices=True), 3),
    "hcl, hard": (lambda m: HCLLoss(m, 0.3, 0.01, 1.0, gather_across_devices=True), 2),
    "hcl, easy": (lambda m: HCLLoss(m, 0.3, estimator="easy", gather_across_devices=True), 2),
    "infonce, repeated texts, mini-batches": (
        lambda m: InfoNCELoss(m, 0.3, symmetric=True, gather_across_devices=True, mini_batch_size=2),
        3,
    ),
    "hcl, repeated texts": (lambda m: HCLLoss(m, 0.3, 0.01, 1.0, gather_across_devices=True), 2),
    "moco, repeated texts": (lambda m: MoCoLoss(m, queue_size=14, momentum=0.6, temperature=0.3), 2),
    "moco": (lambda m: MoCoLoss(m, queue_size=14, momentum=0.6, temperature=0.3), 2),
}


class Prototypes(EmbeddingLoss):
    """A loss with a parameter and a buffer: the class of a text by its nearest prototype."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.prototypes = nn.Parameter(torch.randn(3, 32))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def compute_loss(self, embeddings, features, labels):
        if is_training(self.model):
            self.batches += 1
        scores = nn.functional.normalize(embeddings[0], dim=1) @ self.prototypes.T
        return nn.functional.cross_entropy(scores, labels)


def steps_of(checkpoint: str, setting: str, rows: slice, wrap=lambda model: model):
    """The gradients of some steps over `rows` of the joint batches, and the state of the loss after them."""
    model = dense_encoder(checkpoint).train()
    make, columns = SETTINGS[setting]
    loss = make(model).double()
    loss.model = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    gradients = []
    for step in range(STEPS):
        features = []
        for column in range(columns):
            starts = range(5 * step + 3 * column, 5 * step + 3 * column + ROWS)
            texts = [f"{WORDS[s % 16]} {WORDS[(s * s) % 15]} {WORDS[(7 * s) % 13]}" for s in starts]
            if "repeated" in setting:  # on both ranks, and again in the next step
                texts[4], texts[5] = texts[1], f"{WORDS[column]} again"
            features.append(model.preprocess(texts[rows]))
        labels = torch.tensor([0.1, 0.9, 0.5, 0.5, 0.0, 1.0]).roll(step)[rows]
        if "two types" in setting:
            labels = torch.tensor([0, 1, 2, 0.5, 1.5, 2.5], dtype=torch.float64)[rows]
            labels = labels.long() if labels.equal(labels.round()) else labels
        optimizer.zero_grad()
        loss(features, labels).backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        optimizer.step()
    return gradients, {name: tensor.detach().clone() for name, tensor in loss_tensors(loss).items()}


def train(checkpoint: str, folder: Path, loss_name: str, batch_size: int, resume: str | None = None):
    """Model and loss after four steps of the stock Trainer, with a checkpoint after two."""
    model = dense_encoder(checkpoint)
    torch.manual_seed(7 + (dist.get_rank() if dist.is_initialized() else 0))  # prototypes differ by rank
    texts = [f"{WORDS[row % 16]} {WORDS[(3 * row) % 16]}" for row in range(32)]
    if loss_name == "moco":
        loss: nn.Module = MoCoLoss(model, queue_size=20, momentum=0.5, temperature=0.3).double()
        data = {"anchor": texts, "positive": [f"the {text} of it" for text in texts]}
    else:
        loss = Prototypes(model).double()
        data = {"text": texts, "label": [row % 3 for row in range(32)]}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        max_steps=4,
        save_steps=2,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=1 if loss_name == "moco" else 2,
        optim="sgd",
        learning_rate=0.05,
        max_grad_norm=0.05,
        dataloader_drop_last=True,
        dataloader_pin_memory=False,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(data),
        loss=loss,
        callbacks=[RunStateCallback(loss)],
    )
    trainer.train(resume_from_checkpoint=resume)
    state = {name: tensor.detach().clone() for name, tensor in loss_tensors(loss).items()}
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}, state


def on_each_rank(checkpoint: str, folder: Path) -> dict[str, Any]:
    """Every loss on the share of a rank, and whole and resumed runs of the Trainer."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    share = ROWS // ranks
    own = slice(rank * share, (rank + 1) * share)
    # BERT's pooler is unused; buffers as sentence-transformers' arguments say
    options = {"find_unused_parameters": True, "broadcast_buffers": False}
    wrap = partial(nn.parallel.DistributedDataParallel, **options)
    results: dict[str, Any] = {setting: steps_of(checkpoint, setting, own, wrap) for setting in SETTINGS}
    for loss_name in ("moco", "prototypes"):
        run = folder / loss_name
        results[f"{loss_name}, whole"] = train(checkpoint, run, loss_name, 4)
        results[f"{loss_name}, resumed"] = train(checkpoint, run, loss_name, 4, str(run / "checkpoint-2"))
    return results


@pytest.mark.parametrize("setting", SETTINGS)
def test_gradients_and_queues_equal_those_of_the_joint_batch(
    setting: str, on_ranks: Callable[..., list[Any]], tiny_checkpoint: Path
) -> None:
    """Three steps under DistributedDataParallel; MoCo's queue wraps in the third."""
    gradients, state = steps_of(str(tiny_checkpoint), setting, slice(0, ROWS))
    assert all(any(gradient.any() for gradient in step.values()) for step in gradients)
    for results in on_ranks("on_each_rank"):
        # float64 throughout; only the order of sums and the padding of a batch differ
        torch.testing.assert_close(results[setting][0], gradients, rtol=1e-7, atol=1e-10)
        torch.testing.assert_close(results[setting][1], state, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("loss_name", ["moco", "prototypes"])
def test_a_run_of_the_trainer_equals_one_process(
    loss_name: str, on_ranks: Callable[..., list[Any]], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Prototypes drawn apart on each rank start as rank 0's, their gradients are averaged and clipped."""
    expected = train(str(tiny_checkpoint), tmp_path, loss_name, 8)
    for results in on_ranks("on_each_rank"):
        torch.testing.assert_close(results[f"{loss_name}, whole"], expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("loss_name", ["moco", "prototypes"])
def test_a_run_resumed_on_two_ranks_is_the_run_never_stopped(
    loss_name: str, on_ranks: Callable[..., list[Any]]
) -> None:
    """Bit for bit, and the same on both ranks."""
    first, second = on_ranks("on_each_rank")
    for results in (first, second):
        for name in (f"{loss_name}, whole", f"{loss_name}, resumed"):
            torch.testing.assert_close(results[name], first[f"{loss_name}, whole"], rtol=0, atol=0)
