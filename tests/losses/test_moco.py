"""MoCo against PyTorch's cross-entropy, as its authors compute it, and against a loop over a whole run."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from small_runs import exact
from torch import nn

from lexforge.losses import MoCoLoss
from lexforge.losses.moco import moco


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("temperature", [1.0, 0.07, 0.005])
def test_equals_cross_entropy_with_the_positive_in_column_0(seed: int, temperature: float) -> None:
    """The original lines: einsum, cat, divide, CrossEntropyLoss with labels of zero."""
    generator = torch.Generator().manual_seed(seed)
    rows, length = (int(torch.randint(1, 8, (), generator=generator)) for _ in range(2))
    q, k = (torch.randn(rows, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    queue = torch.randn(length, 4, generator=generator, dtype=torch.float64)
    l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
    l_neg = torch.einsum("nc,ck->nk", [q, queue.T])
    logits = torch.cat([l_pos, l_neg], dim=1) / temperature
    expected = nn.CrossEntropyLoss()(logits, torch.zeros(rows, dtype=torch.long))
    assert moco(q, k, queue, temperature).item() == pytest.approx(expected.item(), rel=1e-12)


def test_gradcheck_and_no_gradient_into_keys_and_queue() -> None:
    """Only the query learns."""
    torch.manual_seed(0)
    q, k, queue = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (2, 2, 4))
    assert torch.autograd.gradcheck(lambda rows: moco(rows, k, queue, 0.3), q)
    moco(q, k, queue, 0.3).backward()
    assert q.grad.any()
    assert k.grad is None
    assert queue.grad is None


@pytest.mark.parametrize(("rows", "length"), [(2, 0), (0, 0)])
def test_nothing_to_tell_apart_is_zero_and_connected(rows: int, length: int) -> None:
    """An empty queue, also of an empty batch."""
    query = torch.rand(rows, 3, requires_grad=True)
    loss = moco(query, torch.rand(rows, 3), torch.rand(length, 3))
    loss.backward()
    assert loss.item() == 0
    assert query.grad.shape == (rows, 3)
    assert not query.grad.any()


def test_extreme_scores_stay_finite() -> None:
    """Temperature .005 and a key that is the worst candidate."""
    query = torch.tensor([[1.0, 0.0]], requires_grad=True)
    loss = moco(query, -query.detach(), torch.eye(2), 0.005)
    loss.backward()
    assert loss.item() == pytest.approx(400, rel=1e-6)
    assert query.grad.isfinite().all()


def test_function_errors() -> None:
    """Shapes that would broadcast."""
    rows = torch.rand(2, 3)
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(1, 3\)"):
        moco(rows, rows[:1], rows)
    with pytest.raises(ValueError, match=r"queue must be \[Q, 3\].*\(2, 4\)"):
        moco(rows, rows, torch.rand(2, 4))
    with pytest.raises(ValueError, match="temperature"):
        moco(rows, rows, rows, 0)


def batch(model, number: int) -> list[dict]:
    words = "sort list array file tree graph hash key loss batch".split()
    anchors = [f"{words[(number + row) % 10]} a" for row in range(3)]
    return [model.preprocess(anchors), model.preprocess([f"the {text} of it" for text in anchors])]


def test_a_run_equals_one_kept_by_hand(tiny_dense) -> None:
    """Momentum encoder and queue over five steps of two micro-batches, against copies kept in plain lists."""
    model = exact(tiny_dense)
    loss = MoCoLoss(model, queue_size=8, momentum=0.6, temperature=0.2).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    average = {name: value.clone() for name, value in model.state_dict().items()}
    queue: list[torch.Tensor] = []
    queue_texts: list[str] = []
    for step in range(5):
        for micro in range(2):
            anchors, positives = batch(model, 2 * step + micro)
            with torch.no_grad():
                query = F.normalize(model(dict(anchors))["sentence_embedding"], dim=1)
                own = {name: value.clone() for name, value in model.state_dict().items()}
                model.load_state_dict(average)
                key = F.normalize(model(dict(positives))["sentence_embedding"], dim=1)
                model.load_state_dict(own)
            scores = [query @ key.T] if not queue else [(query * key).sum(1, keepdim=True)]
            own_texts = [model.tokenizer.decode(ids) for ids in positives["input_ids"]]
            if queue:
                held = query @ torch.stack(queue[-8:]).T
                for row, text in enumerate(own_texts):  # a key of the query's own positive is no negative
                    for place, other in enumerate(queue_texts[-8:]):
                        if text == other:
                            held[row, place] = -torch.inf
                scores.append(held)
            target = torch.arange(3) if not queue else torch.zeros(3, dtype=torch.long)
            expected = F.cross_entropy(torch.cat(scores, dim=1) / 0.2, target)
            found = loss([anchors, positives])
            # float64; sums in another order
            assert found.item() == pytest.approx(expected.item(), rel=1e-9), (step, micro)
            found.backward()
            queue += list(key)
            queue_texts += own_texts
        optimizer.step()
        optimizer.zero_grad()
        for name, value in model.state_dict().items():
            average[name] = 0.6 * average[name] + 0.4 * value


def test_a_zero_query_has_no_gradient(tiny_dense) -> None:
    """A query without a known term is zero; clipping would leave nothing beside a gradient of 1e12."""
    query = torch.stack([torch.zeros(32), torch.rand(32)]).requires_grad_()
    loss = MoCoLoss(tiny_dense, queue_size=6).compute_loss([query, torch.rand(2, 32)], [{}, {}], None)
    loss.backward()
    assert not query.grad[0].any()
    assert query.grad[1].any()


def test_evaluation_reads_the_queue_and_changes_nothing(tiny_dense) -> None:
    """In eval mode, or without gradients as in a trainer's evaluation; with an empty queue the batch stands
    in.
    """
    loss = MoCoLoss(tiny_dense, queue_size=6, momentum=0.5)
    model = tiny_dense.eval()
    with torch.no_grad():
        in_batch = loss(batch(model, 0))
    assert in_batch.item() > 0
    assert len(loss.queue) == 0
    loss(batch(model.train(), 0)).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    before = {name: value.clone() for name, value in loss.queue.state_dict().items()}
    average = [value.clone() for value in loss.momentum_encoder.tensors().values()]
    values = [loss(batch(model.eval(), 5)).item() for _ in range(2)]
    with torch.no_grad():
        loss(batch(model.train(), 5))
    assert values[0] == values[1]
    torch.testing.assert_close(loss.queue.state_dict(), before, rtol=0, atol=0)
    torch.testing.assert_close(list(loss.momentum_encoder.tensors().values()), average, rtol=0, atol=0)


def test_the_optimizer_never_sees_the_second_model(tiny_dense) -> None:
    """Neither parameter nor child: the Trainer builds the optimizer from the one and swaps the other."""
    loss = MoCoLoss(tiny_dense, queue_size=4)
    assert {id(p) for p in loss.parameters()} == {id(p) for p in tiny_dense.parameters()}
    assert {name for name, _ in loss.named_children()} == {"model", "queue"}
    assert not any(p.requires_grad for p in loss.momentum_encoder.tensors().values())


def test_module_errors_and_settings(tiny_dense) -> None:
    """Bad settings at construction; bad data at the first call."""
    for settings, message in (
        ({"queue_size": 0}, "size of the queue must be a positive integer; received 0"),
        ({"momentum": 1.0}, "momentum"),
        ({"temperature": -1.0}, "temperature"),
    ):
        with pytest.raises(ValueError, match=message):
            MoCoLoss(tiny_dense, **settings)
    with pytest.raises(ValueError, match="that embeds texts; received Linear"):
        MoCoLoss(nn.Linear(2, 2))
    loss = MoCoLoss(tiny_dense.train(), queue_size=2, momentum=0.9, temperature=0.1)
    with pytest.raises(ValueError, match="queue of 2 is shorter than the 3 keys"):
        loss(batch(tiny_dense, 0))
    with pytest.raises(ValueError, match="3 text columns"):
        loss([*batch(tiny_dense, 0), batch(tiny_dense, 1)[0]])
    with pytest.raises(ValueError, match="cannot take embeddings of another loss"):
        loss.compute_loss_from_embeddings([torch.rand(2, 32)] * 2)
    assert loss.get_config_dict() == {
        "queue_size": 2,
        "momentum": 0.9,
        "temperature": 0.1,
        "mini_batch_size": None,
    }
    assert "Momentum Contrast" in loss.citation


def test_it_separates_topics(tiny_splade, topics) -> None:
    """Through the trainer of sparse encoders, on texts it was not trained on; InfoNCE takes each door."""
    tiny_splade.similarity_fn_name = "cosine"
    before = topics.separation(tiny_splade)
    rows = [{"anchor": a, "positive": b} for a, b in topics.pairs(96)]
    loss = MoCoLoss(tiny_splade, queue_size=64, momentum=0.9, temperature=0.1)
    topics.train(tiny_splade, loss, rows, "sparse trainer")
    assert len(loss.queue) == 64
    assert topics.separation(tiny_splade) > before + 0.2


def test_a_fused_sparse_model_has_a_momentum_encoder_too(tiny_splade) -> None:
    """The fused head is copied with the model."""
    from lexforge.models import fuse_splade_head

    tiny_splade.similarity_fn_name = "cosine"
    model = fuse_splade_head(tiny_splade).train()
    loss = MoCoLoss(model, queue_size=8, momentum=0.5)
    for number in range(2):
        loss(batch(model, number)).backward()
        torch.optim.SGD(model.parameters(), lr=0.01).step()
    assert len(loss.queue) == 6


def test_a_model_that_gets_another_format_afterwards_trains(tiny_dense) -> None:
    """The first batch, whose own keys are the negatives, ended in an error about Double and Float."""
    loss = MoCoLoss(tiny_dense, queue_size=8, temperature=0.2)
    tiny_dense.double().train()
    for _ in range(2):
        found = loss(batch(tiny_dense, 0))
        found.backward()
        assert found.dtype == torch.float64
