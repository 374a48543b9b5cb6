"""Every preset and every contrastive loss trains the same model on two ranks as on one."""

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
    sentence_transformer,
)
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from small_runs import CONTRASTIVE, JOINT_BATCH, LABELS, QUIET, ROWS, RandomTeacher, exact
from transformers import TrainerCallback

from lexforge.losses import NeuralSparseLoss, loss_tensors, penalty_weights
from lexforge.models import TokenWeights
from lexforge.training import PRESETS, DenseTrainer, SpladeTrainer, TrainingSettings

STEPS = 20
WANTED_TERMS = "plain, wanted terms"


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


def train(checkpoint: str, preset: str, ranks: int, **wanted: float) -> dict[str, Any]:
    """Train in float64 without dropout; parts of every step, gradients of two, the weights at the end.

    Wanted numbers of active terms move the weights of FLOPS in each step. The bias that is trimmed at the
    end is left out of the weights: vectors are float32, which rounds other sums of float64 to other numbers.
    """
    numbers = PRESETS[preset].loss  # type: ignore[index]
    modules: list[Any]
    if preset == "bge-m3":  # it has a head of its own
        torch.manual_seed(0)  # of that head, and of the pooler, which the checkpoint lacks
        transformer = Transformer(checkpoint, max_seq_length=32)
        transformer.model.pooler.requires_grad_(False)
        tokenizer: Any = transformer.tokenizer
        modules = [transformer, TokenWeights(32, len(tokenizer), tokenizer.all_special_ids, 8)]
    else:
        transformer = Transformer(checkpoint, transformer_task="fill-mask", max_seq_length=32)
        modules = [transformer, SpladePooling("max")]
    model = exact(SparseEncoder(modules=modules, device="cpu"))
    model.similarity_fn_name = numbers.similarity
    special = model.tokenizer.all_special_ids
    idf = torch.linspace(0.1, 3, len(model.tokenizer))
    loss = NeuralSparseLoss(
        model,
        penalty_weights=penalty_weights(numbers, idf, special, [7, 8, 9]),
        special_token_ids=special,
        gather_across_devices=True,
        **numbers.arguments(),
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


def on_each_rank(checkpoint: str, folder: Path) -> dict[str, Any]:
    """Every run on the share of a rank; parts are means over the ranks."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    results = {preset: train(checkpoint, preset, ranks) for preset in PRESETS}
    results[WANTED_TERMS] = train(checkpoint, "plain", ranks, query_terms=8, document_terms=20)
    results |= {name: train_dense(checkpoint, name, ranks) for name in CONTRASTIVE}
    if ranks > 1:
        for part in (
            part for result in results.values() for parts in result["parts"] for part in parts.values()
        ):
            dist.all_reduce(part)
            part /= ranks
    return results


@pytest.mark.slow
@pytest.mark.timeout(1700)
@pytest.mark.parametrize(
    "setting",
    [
        *PRESETS,
        "plain, wanted terms",
        "infonce",
        "infonce, symmetric",
        "hcl",
        "cosent",
        "moco",
        "nws",
    ],
)
def test_twenty_steps_on_two_ranks_are_those_on_one(setting: str, on_ranks: Callable[..., list[Any]]) -> None:
    """Hard negatives, teacher, curriculum, ramp, IDF FLOPS, clipping, AdamW and the schedule together; of a
    contrastive loss its queue, prototypes and momentum encoder. The same parts at every step, the same
    gradients at the first and the last, the same weights at the end. Both ranks have these to the bit.
    """
    (one,), (joint, second) = (
        [results[setting] for results in on_ranks("on_each_rank", ranks)] for ranks in (1, 2)
    )
    assert len(one["parts"]) == 20
    assert set(one["gradients"]) == {0, 19}
    # float64 throughout: the order of sums and the padding of a batch differ, and twenty steps of AdamW,
    # which divides by the size of a gradient, carry the difference on.
    torch.testing.assert_close(joint["parts"], one["parts"], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(joint["gradients"][0], one["gradients"][0], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(joint["gradients"], one["gradients"], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(joint["weights"], one["weights"], rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(second["weights"], joint["weights"], rtol=0, atol=0)
