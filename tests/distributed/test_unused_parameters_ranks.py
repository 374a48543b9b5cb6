"""Models with routes, and models with parameters that get no gradient, train on two ranks as on one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
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
from small_runs import CONTRASTIVE, JOINT_BATCH, QUIET, ROWS, exact

from lexforge.losses import NeuralSparseLoss
from lexforge.models import build_inference_free
from lexforge.training import DenseTrainer, SpladeTrainer, TrainingSettings

STEPS = 4
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


def on_each_rank(checkpoint: str, folder: Path) -> dict[str, Any]:
    """Every run on the share of a rank."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    return {
        "inference-free": train_inference_free(checkpoint, ranks, open_argument=False),
        "inference-free, open": train_inference_free(checkpoint, ranks, open_argument=True),
        "pooler": train_dense(checkpoint, ranks, "infonce", pooler=True),
        "no pooler": train_dense(checkpoint, ranks, "infonce", pooler=False),
        "no pooler, moco": train_dense(checkpoint, ranks, "moco", pooler=False),
    }


@pytest.mark.timeout(700)
def test_two_ranks_train_as_one_and_find_unused_parameters_unless_columns_take_routes(
    on_ranks: Callable[..., list[Any]], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """An inference-free encoder with trained query weights crashed ("mark a variable ready only once"),
    and a dense encoder with a pooler needs the search.
    """
    one, joint = on_each_rank(str(tiny_checkpoint), tmp_path), on_ranks("on_each_rank")[0]
    assert {name: result["find_unused"] for name, result in joint.items()} == {
        "inference-free": False,
        "inference-free, open": False,
        "pooler": True,
        "no pooler": True,
        "no pooler, moco": True,
    }
    for name, result in joint.items():
        # float64 without dropout: only the order of sums and the padding of a batch differ.
        torch.testing.assert_close(result["weights"], one[name]["weights"], rtol=1e-7, atol=1e-9)
