"""Encoding in mini-batches gives the whole batch's loss and gradients, from the memory of one mini-batch."""

from __future__ import annotations

import pytest
import torch
from gradients import batch, parts_and_gradients, sparse
from small_runs import without_dropout
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from lexforge.losses import InfoNCELoss, NeuralSparseLoss, gradient_cache
from lexforge.losses.gradient_cache import embed_in_mini_batches


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_the_sparse_loss_and_its_gradients_are_those_of_the_whole_batch(tiny_splade, size: int) -> None:
    """Every part, with the teacher and FLOPS over all rows; the last mini-batch may be short."""
    model = without_dropout(tiny_splade).double()
    features = batch(model)
    expected = parts_and_gradients(sparse(model), features)
    found = parts_and_gradients(sparse(model, mini_batch_size=size), features)
    assert len(expected[0]) == 9
    # float64: only the order of sums differs
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("symmetric", [False, True])
def test_info_nce_and_its_gradients_are_those_of_the_whole_batch(tiny_dense, symmetric: bool) -> None:
    """The same encoding serves both losses."""
    model = without_dropout(tiny_dense).double()
    features = batch(model, teacher=False)
    expected = parts_and_gradients(InfoNCELoss(model, 0.3, symmetric=symmetric), features)
    loss = InfoNCELoss(model, 0.3, symmetric=symmetric, mini_batch_size=2)
    assert loss.get_config_dict()["mini_batch_size"] == 2
    torch.testing.assert_close(parts_and_gradients(loss, features), expected, rtol=1e-9, atol=1e-11)


def test_a_fused_head_is_encoded_in_mini_batches_too(tiny_splade) -> None:
    """The trainer fuses every model's head."""
    from lexforge.models import fuse_splade_head

    # In float64: some gradients are 0 but for rounding (a bias of the keys shifts all scores of a softmax
    # alike), which in float32 differs by as much as it is.
    model = fuse_splade_head(without_dropout(tiny_splade)).train().double()
    features = batch(model)
    expected = parts_and_gradients(sparse(model), features)
    found = parts_and_gradients(sparse(model, mini_batch_size=3), features)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-12)
    for name, gradient in expected[1].items():
        assert (found[1][name] - gradient).norm() < 1e-10 * gradient.norm().clamp_min(1e-3), name


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_second_encoding_draws_the_same_random_numbers(tiny_dense, device: str) -> None:
    """With dropout, cached gradients of other masks would be gradients of nothing."""
    model = tiny_dense.train().double().to(device)
    assert any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules())
    features = [
        {key: value.to(device) if torch.is_tensor(value) else value for key, value in column.items()}
        for column in batch(model, teacher=False)
    ]

    def gradients(cached: bool) -> dict:
        torch.manual_seed(3)
        model.zero_grad()
        if cached:
            columns = embed_in_mini_batches(model, features, 3)
        else:
            pieces = [
                [
                    {key: value[start : start + 3] for key, value in column.items() if torch.is_tensor(value)}
                    for start in (0, 3, 6)
                ]
                for column in features
            ]
            columns = [
                torch.cat([model(dict(piece))["sentence_embedding"] for piece in column]) for column in pieces
            ]
        after = torch.rand(1)
        InfoNCELoss(model, 0.3).compute_loss_from_embeddings(columns).backward()
        assert torch.rand(1) != after
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    torch.testing.assert_close(gradients(True), gradients(False), rtol=1e-9, atol=1e-12)


def test_checkpoint_sees_the_tensors_of_a_mini_batch(tiny_dense, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the random state of the devices of its arguments alone: without them a GPU's dropout would
    differ in the second encoding.
    """
    seen: list[torch.Tensor] = []

    def spy(function, *arguments, **options):
        seen.extend(value for value in tree_leaves(arguments) if torch.is_tensor(value))
        return checkpoint(function, *arguments, **options)

    monkeypatch.setattr(gradient_cache, "checkpoint", spy)
    columns = [{key: torch.ones(4, 5, dtype=torch.long) for key in ("input_ids", "attention_mask")}]
    embed_in_mini_batches(tiny_dense, columns, 2)
    assert [tensor.shape for tensor in seen] == [(2, 5)] * 4  # two tensors of two mini-batches


def test_the_second_encoding_runs_under_the_autocast_of_the_first(tiny_splade) -> None:
    """The Trainer's backward pass runs outside autocast."""
    model = without_dropout(tiny_splade)
    features = batch(model)
    results = []
    for size in (None, 3):
        loss = sparse(model, mini_batch_size=size)
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            total = sum(loss(features).values())
        total.backward()
        results.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    for name, gradient in results[0].items():
        # bfloat16 has three digits, and mini-batches are padded and summed apart
        assert (results[1][name] - gradient).norm() < 0.05 * gradient.norm().clamp_min(1e-2), name


class Counting(torch.nn.Module):
    """An encoder that counts the activations that autograd holds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))
        self.rows: list[int] = []

    def forward(self, features: dict) -> dict:
        self.rows.append(len(features["input_ids"]))
        hidden = torch.tanh(features["input_ids"].float() @ self.weight)
        return {"sentence_embedding": hidden}


def test_activations_of_no_more_than_one_mini_batch_are_held() -> None:
    """Each mini-batch is encoded twice, and nothing of the encoder is saved in between."""
    model = Counting()
    column = {"input_ids": torch.arange(28).reshape(7, 4)}
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        (embeddings,) = embed_in_mini_batches(model, [column], 3)
    assert sum(saved) == 0  # torch 2.11 saves an empty tensor for each mini-batch, newer versions save none
    embeddings.sum().backward()
    assert sorted(model.rows) == [1, 1, 3, 3, 3, 3]
    with torch.no_grad():
        embed_in_mini_batches(model, [column], 3)
    assert len(model.rows) == 9, "without gradients nothing is encoded twice"


def test_errors(tiny_dense) -> None:
    """A size that means nothing, and columns that cannot be cut into rows."""
    for size in (0, -1, 2.5, "large"):
        with pytest.raises(ValueError, match=rf"mini_batch_size.*{size}"):
            InfoNCELoss(tiny_dense, mini_batch_size=size)
        with pytest.raises(ValueError, match=rf"mini_batch_size.*{size}"):
            NeuralSparseLoss(tiny_dense, mini_batch_size=size)
    with pytest.raises(ValueError, match="one row per text"):
        embed_in_mini_batches(tiny_dense, [{"pixel_values": torch.rand(4, 3)}], 2)
