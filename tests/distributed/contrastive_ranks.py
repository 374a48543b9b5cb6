"""Contrastive losses on a share of a joint batch, and whole runs of the Trainer: run under torchrun, and
imported by its test.

torchrun --nproc-per-node 2 contrastive_ranks.py CHECKPOINT OUTPUT
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import nn

from lexforge.losses import CoSENTLoss, HCLLoss, InfoNCELoss, MoCoLoss, loss_tensors
from lexforge.losses.base import EmbeddingLoss
from lexforge.models import is_training
from lexforge.runs import RunStateCallback, leave_processes

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


def build(checkpoint: str) -> SentenceTransformer:
    """The tiny model in float64 without dropout: only the order of sums may differ."""
    torch.manual_seed(0)  # of the pooler, which the checkpoint lacks
    transformer = Transformer(checkpoint, max_seq_length=32)
    pooling = Pooling(transformer.get_embedding_dimension())
    model = SentenceTransformer(modules=[transformer, pooling], device="cpu").double()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def steps_of(checkpoint: str, setting: str, rows: slice, wrap=lambda model: model):
    """The gradients of some steps over `rows` of the joint batches, and the state of the loss after them."""
    model = build(checkpoint).train()
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
        optimizer.zero_grad()
        loss(features, labels).backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        optimizer.step()
    return gradients, {name: tensor.detach().clone() for name, tensor in loss_tensors(loss).items()}


def train(checkpoint: str, folder: Path, kind: str, batch_size: int, resume: str | None = None):
    """Model and loss after four steps of the stock Trainer, with a checkpoint after two."""
    model = build(checkpoint)
    torch.manual_seed(7 + (dist.get_rank() if dist.is_initialized() else 0))  # prototypes differ by rank
    texts = [f"{WORDS[row % 16]} {WORDS[(3 * row) % 16]}" for row in range(32)]
    if kind == "moco":
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
        gradient_accumulation_steps=1 if kind == "moco" else 2,
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


def main(checkpoint: str, output: str) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    share = ROWS // ranks
    own = slice(rank * share, (rank + 1) * share)
    # BERT's pooler is unused; buffers as sentence-transformers' arguments say
    options = {"find_unused_parameters": True, "broadcast_buffers": False}
    wrap = partial(nn.parallel.DistributedDataParallel, **options)
    results: dict[str, object] = {setting: steps_of(checkpoint, setting, own, wrap) for setting in SETTINGS}
    for kind in ("moco", "prototypes"):
        folder = Path(output).parent / kind
        results[f"{kind}, whole"] = train(checkpoint, folder, kind, 4)
        results[f"{kind}, resumed"] = train(checkpoint, folder, kind, 4, str(folder / "checkpoint-2"))
    everything: list[object] = [None] * ranks
    dist.all_gather_object(everything, results)
    if rank == 0:
        torch.save(everything, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave_processes()
