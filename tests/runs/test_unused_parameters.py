"""Which parameters get no gradient is read from the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainingArguments,
    SparseEncoder,
    SparseEncoderTrainingArguments,
)

from lexforge.models import build_inference_free, fuse_splade_head
from lexforge.runs import unused_parameters as module
from lexforge.runs.unused_parameters import decide_find_unused, unused_parameters
from lexforge.training import TrainingSettings


def without_gradient(model: SentenceTransformer | SparseEncoder) -> list[str]:
    """The same by a backward pass."""
    features = model.preprocess(["a list of words"])
    model(features)["sentence_embedding"].sum().backward()
    return [name for name, parameter in model.named_parameters() if parameter.grad is None]


def test_the_pooler_of_a_dense_encoder_is_found(tiny_dense: SentenceTransformer) -> None:
    """Mean pooling leaves it out, as a backward pass shows, and nothing else."""
    assert unused_parameters(tiny_dense) == without_gradient(tiny_dense)
    assert [name.split(".", 2)[2] for name in unused_parameters(tiny_dense)] == [
        "pooler.dense.weight",
        "pooler.dense.bias",
    ]
    for name, parameter in tiny_dense.named_parameters():
        parameter.requires_grad_("pooler" not in name)
    assert unused_parameters(tiny_dense) == []


@pytest.mark.parametrize("fused", [False, True])
def test_a_splade_encoder_uses_all(tiny_splade: SparseEncoder, fused: bool) -> None:
    """The arguments of `TrainingSettings` say so without a look at the model."""
    model = fuse_splade_head(tiny_splade) if fused else tiny_splade
    assert unused_parameters(model) == without_gradient(model) == []


def test_a_route_is_used_if_its_task_is(tiny_splade: SparseEncoder) -> None:
    """Of an inference-free encoder each column uses its own half."""
    weights = torch.ones(len(tiny_splade.tokenizer)).numpy()
    model = build_inference_free(tiny_splade, weights, trainable=True)
    assert unused_parameters(model, ["query", "document"]) == []
    (lookup,) = unused_parameters(model, ["document"])
    assert lookup.startswith("0.sub_modules.query")
    assert len(unused_parameters(model, ["query"])) == len(list(model.parameters())) - 1


def test_the_model_stays_as_it_was(tiny_dense: SentenceTransformer) -> None:
    """Mode, gradients and the random state, from which the dropout of training is drawn."""
    tiny_dense.train()
    state = torch.get_rng_state()
    unused_parameters(tiny_dense)
    assert tiny_dense.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in tiny_dense.parameters())


def test_only_an_open_argument_is_decided_and_only_on_several_ranks(
    tiny_dense: SentenceTransformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the user has set holds, and one rank has nothing to decide."""
    settings = TrainingSettings(precision="fp32")

    def decided(**given: bool) -> bool | None:
        arguments = settings.arguments(tmp_path, SentenceTransformerTrainingArguments, **given)
        decide_find_unused(arguments, tiny_dense)
        return arguments.ddp_find_unused_parameters

    assert decided() is None
    monkeypatch.setattr(module, "world_size", lambda: 2)
    assert decided() is True
    assert decided(ddp_find_unused_parameters=False) is False
    for name, parameter in tiny_dense.named_parameters():
        parameter.requires_grad_("pooler" not in name)
    assert decided() is False
    assert decided(ddp_find_unused_parameters=True) is True


def test_the_settings_of_a_sparse_encoder_say_false(tmp_path: Path) -> None:
    """The stock trainer of sparse encoders then trains an inference-free model on several ranks as well."""
    settings = TrainingSettings(precision="fp32")
    assert settings.arguments(tmp_path).ddp_find_unused_parameters is False
    stock = settings.arguments(tmp_path, SentenceTransformerTrainingArguments)
    assert stock.ddp_find_unused_parameters is None
    assert SparseEncoderTrainingArguments(str(tmp_path)).ddp_find_unused_parameters is None
