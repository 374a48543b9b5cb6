"""Twenty steps of our trainers on a share of each joint batch: run by its test, on two ranks and on one.

torchrun --nproc-per-node 2 training_ranks.py CHECKPOINT OUTPUT
python training_ranks.py CHECKPOINT OUTPUT
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainingArguments,
    SparseEncoder,
    sentence_transformer,
)
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from transformers import TrainerCallback

from lexforge.losses import (
    CoSENTLoss,
    HCLLoss,
    InfoNCELoss,
    MoCoLoss,
    NeuralSparseLoss,
    NWSLoss,
    loss_tensors,
)
from lexforge.runs import leave_processes
from lexforge.training import PRESETS, DenseTrainer, SpladeTrainer, TrainingSettings

JOINT_BATCH, STEPS = 8, 20
WANTED_TERMS = "plain, wanted terms"
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

    def lookup(self, texts: list[str], kind: str) -> np.ndarray:
        rows = [np.random.default_rng(sum(text.encode())).normal(size=8) for text in texts]
        return np.stack([row / np.linalg.norm(row) for row in rows])


class Recording(SpladeTrainer):
    """Keeps the parts of every step."""

    def track_loss_components(self, loss: dict[str, torch.Tensor]) -> None:
        self.__dict__.setdefault("recorded", []).append({k: v.detach().clone() for k, v in loss.items()})
        super().track_loss_components(loss)


class RecordingDense(DenseTrainer):
    """Keeps the loss of every step."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        self.__dict__.setdefault("recorded", []).append({"loss": loss.detach().clone()})
        return loss


class Gradients(TrainerCallback):
    """Keeps the gradients that the first and the last step hand to the optimizer, clipped."""

    def __init__(self) -> None:
        self.found: dict[int, dict[str, torch.Tensor]] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
        if state.global_step in (0, STEPS - 1):
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            self.found[state.global_step] = gradients


QUIET: dict[str, Any] = {"disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}


def settings(ranks: int) -> TrainingSettings:
    """Twenty steps over the joint batch."""
    return TrainingSettings(
        save_total_limit=None,
        steps=STEPS,
        batch_size=JOINT_BATCH // ranks,
        gradient_accumulation_steps=1,
        learning_rate=1e-3,
        precision="fp32",
    )


def exact(model: Any) -> Any:
    """The model in float64 and without dropout: only the order of sums may differ."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model.double()


def train(checkpoint: str, preset: str, ranks: int, **wanted: float) -> dict[str, Any]:
    """Train in float64 without dropout; parts of every step, gradients of two, the weights at the end.

    Wanted numbers of active terms move the weights of FLOPS in each step. The bias that is trimmed at the
    end is left out of the weights: vectors are float32, which rounds other sums of float64 to other numbers.
    """
    numbers = PRESETS[preset]  # type: ignore[index]
    transformer = Transformer(checkpoint, transformer_task="fill-mask", max_seq_length=32)
    model = exact(SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu"))
    model.similarity_fn_name = numbers.similarity
    special = model.tokenizer.all_special_ids
    idf = torch.linspace(0.1, 3, len(model.tokenizer))
    loss = NeuralSparseLoss(
        model,
        penalty_weights=numbers.penalty_weights(idf, special, [7, 8, 9]),
        special_token_ids=special,
        gather_across_devices=True,
        **numbers.loss_arguments(),
    )
    gradients = Gradients()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Recording(
            model,
            loss,
            args=settings(ranks).arguments(folder, **QUIET),
            train_dataset=Dataset.from_list(ROWS),
            teacher=RandomTeacher() if numbers.distillation_weight else None,
            phases=numbers.phases,
            ramp_fraction=numbers.ramp_fraction,
            callbacks=[gradients],
            **wanted,
        )
        trainer.train()
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    if wanted:
        weights = {name: weight for name, weight in weights.items() if "predictions.bias" not in name}
        weights |= loss_tensors(loss)  # the state of the controller
    return {"parts": trainer.__dict__["recorded"], "gradients": gradients.found, "weights": weights}


def train_dense(checkpoint: str, name: str, ranks: int) -> dict[str, Any]:
    """The same of a dense encoder with a contrastive loss, whose queue and prototypes count as weights."""
    modules = sentence_transformer.modules
    torch.manual_seed(0)  # of the pooler, which the checkpoint lacks, and of prototypes
    transformer = modules.Transformer(checkpoint, max_seq_length=32)
    pooling = modules.Pooling(transformer.get_embedding_dimension())
    model = exact(SentenceTransformer(modules=[transformer, pooling], device="cpu"))
    loss = CONTRASTIVE[name](model).double()
    columns: dict[str, Any] = {key: [row[key] for row in ROWS] for key in ("anchor", "positive")}
    if name == "cosent":
        columns["score"] = [i / len(ROWS) for i in range(len(ROWS))]
    if name == "nws":
        columns = {"text": columns["positive"], "label": LABELS}
    gradients = Gradients()
    with tempfile.TemporaryDirectory() as folder:
        trainer = RecordingDense(
            model,
            loss,
            args=settings(ranks).arguments(folder, SentenceTransformerTrainingArguments, **QUIET),
            train_dataset=Dataset.from_dict(columns),
            callbacks=[gradients],
        )
        trainer.train()
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()} | loss_tensors(loss)
    return {"parts": trainer.__dict__["recorded"], "gradients": gradients.found, "weights": weights}


def main(checkpoint: str, output: str) -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    results = {preset: train(checkpoint, preset, ranks) for preset in PRESETS}
    results[WANTED_TERMS] = train(checkpoint, "plain", ranks, query_terms=8, document_terms=20)
    results |= {name: train_dense(checkpoint, name, ranks) for name in CONTRASTIVE}
    if ranks > 1:
        assert dist.get_world_size() == ranks
        for part in (
            part for result in results.values() for parts in result["parts"] for part in parts.values()
        ):
            dist.all_reduce(part)
            part /= ranks
    if ranks == 1 or dist.get_rank() == 0:
        torch.save(results, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave_processes()
