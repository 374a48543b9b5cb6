"""`mini_batch_size="auto"` encodes as many rows at once as fit into the free memory, with the same loss."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from gradients import batch, parts_and_gradients, sparse
from small_runs import without_dropout

from lexforge.losses import CoSENTLoss, HCLLoss, InfoNCELoss, MoCoLoss, NWSLoss, memory
from lexforge.losses.gradient_cache import embed_in_mini_batches, some_rows
from lexforge.losses.memory import RowsThatFit, bytes_of_text, memory_for_activations
from lexforge.models import build_inference_free
from lexforge.models.structure import checkpoint_layers

CPU = torch.device("cpu")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets how many bytes of memory are free."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return lambda size: monkeypatch.setattr(memory, "free_memory", lambda device: size)


@pytest.fixture
def give(free: Any) -> Any:
    """Frees so much memory that this many bytes of it are left for the activations of a model."""

    def give(model: Any, left: float) -> None:
        free(0)
        free((left - memory_for_activations(model, CPU)) / 0.8)

    return give


def kept_by_autograd(model: torch.nn.Module, *columns: dict[str, Any]) -> int:
    """Count, in another way, the bytes that a forward pass of columns keeps beside the weights."""
    weights = {weight.data_ptr() for weight in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        embed_in_mini_batches(model, list(columns), None)
    return sum(one.untyped_storage().nbytes() for address, one in kept.items() if address not in weights)


def test_a_batch_that_fits_is_encoded_whole_and_draws_the_same_dropout(tiny_splade, give) -> None:
    """Bit for bit the run without the choice, so that nothing changes for those who have memory."""
    model = tiny_splade.train()
    give(model, 1e12)
    features = batch(model)
    results = []
    for size in (None, "auto"):
        torch.manual_seed(5)
        parts, gradients = parts_and_gradients(sparse(model, mini_batch_size=size), features)
        results.append((parts, gradients, torch.rand(1)))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_the_largest_batch_is_the_last_that_is_encoded_whole(tiny_splade, give) -> None:
    """One row more and it is cut: the number that a plan names, whatever the batch it was measured on."""
    model = tiny_splade.train()
    give(model, 2e6)
    features = batch(model)
    most = RowsThatFit().largest_batch(model, features)
    assert most > len(features[0]["input_ids"])

    def of(rows: int) -> list[dict[str, Any]]:
        places = torch.arange(rows) % len(features[0]["input_ids"])
        return [some_rows(column, places) for column in features]

    assert RowsThatFit()(model, of(most)) is None
    assert RowsThatFit()(model, of(most + 1)) is not None
    give(model, 0.0)
    assert RowsThatFit().largest_batch(model, features) == 0


@pytest.mark.parametrize(("fitting", "rows"), [(1, 1), (2, 2), (3, 3), (5, 4), (10, 4), (25, None)])
def test_a_batch_that_does_not_fit_is_encoded_as_many_rows_at_a_time_as_fit(
    tiny_splade, give, fitting: int, rows: int | None
) -> None:
    """In pieces of equal size, and the loss and its gradients are those of the whole batch of 3 times 7."""
    model = without_dropout(tiny_splade).double()
    features = batch(model)
    widest = max(features, key=lambda column: column["input_ids"].shape[1])
    text, vector, shared = bytes_of_text(model, widest)
    give(model, text * (fitting + 0.5) + shared + 4 * vector * 7 * 3)
    expected = parts_and_gradients(sparse(model), features)
    loss = sparse(model, mini_batch_size="auto")
    assert loss.rows_that_fit(model, features) == rows
    found = parts_and_gradients(loss, features)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    assert loss.get_config_dict()["mini_batch_size"] == "auto"


def test_columns_count_as_wide_as_they_are_encoded(tiny_dense, give) -> None:
    """One forward pass pads all columns but the first to the widest of them, so short ones take as much."""
    columns = []
    for width in (4, 24, 4, 4):
        numbers = torch.randint(5, 60, (8, width))
        columns.append({"input_ids": numbers, "attention_mask": torch.ones_like(numbers)})
    model = tiny_dense.train()
    give(model, 0.9 * kept_by_autograd(model, *columns))
    assert RowsThatFit()(model, columns) is not None


def test_what_is_done_is_told_once(tiny_splade, give, caplog) -> None:
    """Not in each of a thousand steps."""
    give(tiny_splade, 0.0)
    loss = sparse(tiny_splade.train(), mini_batch_size="auto")
    for _ in range(3):
        loss(batch(tiny_splade))
    (line,) = caplog.messages
    assert "1 rows are encoded at once" in line
    assert "all 7 of a batch would need" in line


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_bytes_of_a_text_are_those_that_autograd_keeps(tiny_splade, checkpointing: bool) -> None:
    """Measured on a few texts, and held against the whole batch; the weights count nowhere."""
    model = without_dropout(tiny_splade)
    column = model.preprocess(["sort a list", "hash of a key", "parse the tree"] * 3)
    text, vector, shared = bytes_of_text(model, column)
    assert 9 * text + shared == pytest.approx(kept_by_autograd(model, column), rel=0.02)
    assert shared < 0.1 * text
    assert vector == 4 * len(model.tokenizer)
    if checkpointing:
        checkpoint_layers(model)
        less, _, _ = bytes_of_text(model, column)
        assert 0.3 * text < less < text, "two layers: the states between them, and one layer computed again"
        assert all(layer.gradient_checkpointing for layer in model[0].model.bert.encoder.layer)


def test_weights_in_half_precision_are_kept_once_for_all_texts(tiny_splade) -> None:
    """A model of 560 million parameters keeps a gigabyte of them, which no number of rows makes smaller."""
    model = without_dropout(tiny_splade)
    column = model.preprocess(["sort a list", "hash of a key", "parse the tree"] * 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, _, shared = bytes_of_text(model, column)
    halves = {name: weight.nbytes / 2 for name, weight in model.named_parameters() if weight.dim() == 2}
    looked_up = sum(size for name, size in halves.items() if "embeddings." in name)  # never multiplied
    whole = sum(halves.values())
    assert whole - 2 * looked_up < shared < 1.2 * whole


def test_longer_texts_are_measured_when_they_come(tiny_splade, give) -> None:
    """A batch of short texts says nothing about the attention of long ones."""
    model = tiny_splade.train()
    short = [model.preprocess(["sort"] * 8)] * 2
    long = [model.preprocess(["sort a list of " * 6] * 8)] * 2
    text, vector, shared = bytes_of_text(model, long[0])
    give(model, text * 3.5 + shared + 4 * vector * 16)
    choose = RowsThatFit()
    assert choose(model, short) is None
    assert choose(model, long) == 3
    assert choose(model, short) is None
    assert choose(model, [long[0], short[0]]) == 3, "the rows of a mini-batch fit for the longest column"


def test_queries_that_are_looked_up_keep_nothing_and_documents_are_measured(tiny_splade, give) -> None:
    """The widest column was measured alone, though its texts may be looked up: a division by 0."""
    model = build_inference_free(tiny_splade, np.linspace(0.1, 2, len(tiny_splade.tokenizer))).train()
    queries = model.preprocess(["sort a list of " * 6] * 8, task="query")
    documents = model.preprocess(["sort"] * 8, task="document")
    kept, vector, shared = bytes_of_text(model, documents)
    assert documents["input_ids"].shape[1] < queries["input_ids"].shape[1]
    give(model, kept * 3.5 * 2 + shared + 4 * vector * 16)
    assert RowsThatFit()(model, [queries, documents]) in (1, 2, 3)
    give(model, 1e12)
    assert RowsThatFit()(model, [queries, documents]) is None
    give(model, 0.0)
    assert RowsThatFit()(model, [queries]) is None, "pieces would free nothing"


def test_a_resumed_run_goes_by_what_was_measured_before(tiny_splade, give) -> None:
    """Other pieces would round otherwise. Where the machine has other memory, that is measured anew."""
    model = tiny_splade.train()
    columns = [model.preprocess(["sort a list of " * 6] * 8)] * 2
    text, vector, shared = bytes_of_text(model, columns[0])
    give(model, text * 3.5 + shared + 4 * vector * 16)
    choose = RowsThatFit()
    assert choose.state() == {}
    assert choose(model, columns) == 3
    kept = json.loads(json.dumps(choose.state()))
    give(model, 1e12)
    resumed, elsewhere = RowsThatFit(), RowsThatFit()
    resumed.load_state(kept)
    assert resumed(model, columns) == 3
    elsewhere.load_state(kept | {"machine": [1]})
    assert elsewhere(model, columns) is None


def test_nothing_is_measured_in_evaluation(tiny_splade) -> None:
    """Nothing is kept there."""
    loss = sparse(tiny_splade.eval(), mini_batch_size="auto")
    loss(batch(tiny_splade))
    with torch.no_grad():
        loss.train()
        loss(batch(tiny_splade))
    assert loss.rows_that_fit.state() == {}


def test_what_training_still_needs_is_kept_free(tiny_splade, free, monkeypatch) -> None:
    """Gradients, two states of AdamW, an average of the weights, and sums of gradients of the largest one."""
    sizes = [weight.nbytes for weight in tiny_splade.parameters()]
    weights, sums = sum(sizes), 2 * max(sizes)
    free(10 * weights)
    assert memory_for_activations(tiny_splade, CPU) == pytest.approx((0.8 * 10 - 4) * weights - sums)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert memory_for_activations(tiny_splade, CPU) == pytest.approx((0.8 * 5 - 4) * weights - sums)


def test_every_loss_takes_a_mini_batch_size(tiny_dense, give) -> None:
    """The four losses of dense models, with gradients as those of the whole batch."""
    features = batch(without_dropout(tiny_dense).double(), teacher=False)
    give(tiny_dense, 0.0)
    labels = {
        CoSENTLoss: torch.tensor([0.1, 0.5, 0.2, 0.9, 0.3, 0.8, 0.4]),
        NWSLoss: torch.eye(7, 3, dtype=torch.int64).roll(1, 0) | torch.eye(7, 3, dtype=torch.int64),
    }
    made = {
        InfoNCELoss: {},
        HCLLoss: {},
        MoCoLoss: {"queue_size": 16},
        CoSENTLoss: {},
        NWSLoss: {"label_similarity": np.eye(3), "aggregate": "mean", "queue_size": 16},
    }
    for loss_class, arguments in made.items():
        results = []
        for size in (None, "auto", 3):
            torch.manual_seed(1)
            loss = loss_class(tiny_dense, mini_batch_size=size, **arguments)
            tiny_dense.zero_grad()
            value = loss([dict(column) for column in features[:2]], labels.get(loss_class))
            value.backward()
            held = tiny_dense.named_parameters()
            gradients = {name: weight.grad.clone() for name, weight in held if weight.grad is not None}
            assert len(gradients) > 10
            results.append((value.detach(), gradients))
        for found in results[1:]:
            torch.testing.assert_close(found, results[0], rtol=1e-7, atol=1e-9)
