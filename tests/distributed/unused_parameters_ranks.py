"""Models with routes and with unused parameters under DistributedDataParallel: run by its test.

torchrun --nproc-per-node 2 unused_parameters_ranks.py CHECKPOINT OUTPUT
python unused_parameters_ranks.py CHECKPOINT OUTPUT
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainingArguments,
    SparseEncoder,
    SparseEncoderTrainingArguments,
    sentence_transformer,
)
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from training_ranks import CONTRASTIVE, QUIET, ROWS, exact

from lexforge.losses import NeuralSparseLoss
from lexforge.models import build_inference_free
from lexforge.runs import leave_processes
from lexforge.training import DenseTrainer, SpladeTrainer, TrainingSettings

JOINT_BATCH, STEPS = 8, 4
ROUTES = {"anchor": "query", "positive": "document", "negative_1": "document", "negative_2": "document"}


def settings(ranks: int) -> TrainingSettings:
    return TrainingSettings(
        steps=STEPS,
        batch_size=JOINT_BATCH // ranks,
        gradient_accumulation_steps=1,
        learning_rate=1e-3,
        precision="fp32",
    )


def train_inference_free(checkpoint: str, ranks: int, *, open_argument: bool) -> dict[str, Any]:
    """Queries are looked up in a table that is trained, documents encoded."""
    transformer = Transformer(checkpoint, transformer_task="fill-mask", max_seq_length=32)
    encoder = SparseEncoder(
        modules=[transformer, SpladePooling("max")], device="cpu", similarity_fn_name="dot"
    )
    terms = len(encoder.tokenizer)
    model = exact(build_inference_free(encoder, torch.linspace(0.1, 2, terms).numpy(), trainable=True))
    loss = NeuralSparseLoss(model, gather_across_devices=True, distillation_weight=0.0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = settings(ranks).arguments(
            folder, SparseEncoderTrainingArguments, router_mapping=ROUTES, **QUIET
        )
        if open_argument:  # as a user leaves it who writes the arguments without `TrainingSettings`
            arguments.ddp_find_unused_parameters = None
        trainer = SpladeTrainer(model, loss, args=arguments, train_dataset=Dataset.from_list(ROWS))
        trainer.train()
    return result(trainer)


def train_dense(checkpoint: str, ranks: int, name: str, *, pooler: bool) -> dict[str, Any]:
    """A `BertModel` has a pooler, which mean pooling does not use."""
    modules = sentence_transformer.modules
    torch.manual_seed(0)  # of the pooler, which the checkpoint lacks
    options = {} if pooler else {"add_pooling_layer": False}
    transformer = modules.Transformer(checkpoint, max_seq_length=32, model_kwargs=options)
    pooling = modules.Pooling(transformer.get_embedding_dimension())
    model = exact(SentenceTransformer(modules=[transformer, pooling], device="cpu"))
    data = Dataset.from_dict({key: [row[key] for row in ROWS] for key in ("anchor", "positive")})
    with tempfile.TemporaryDirectory() as folder:
        arguments = settings(ranks).arguments(folder, SentenceTransformerTrainingArguments, **QUIET)
        trainer = DenseTrainer(model, CONTRASTIVE[name](model).double(), args=arguments, train_dataset=data)
        trainer.train()
    return result(trainer)


def result(trainer: Any) -> dict[str, Any]:
    weights = {name: parameter.detach() for name, parameter in trainer.model.named_parameters()}
    return {"find_unused": trainer.args.ddp_find_unused_parameters, "weights": weights}


def main(checkpoint: str, output: str) -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    results = {
        "inference-free": train_inference_free(checkpoint, ranks, open_argument=False),
        "inference-free, open": train_inference_free(checkpoint, ranks, open_argument=True),
        "pooler": train_dense(checkpoint, ranks, "infonce", pooler=True),
        "no pooler": train_dense(checkpoint, ranks, "infonce", pooler=False),
        "no pooler, moco": train_dense(checkpoint, ranks, "moco", pooler=False),
    }
    if ranks == 1 or dist.get_rank() == 0:
        torch.save(results, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave_processes()
