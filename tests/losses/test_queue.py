"""The queue against a list that drops its oldest."""

from __future__ import annotations

from collections import deque

import pytest
import torch
import torch.nn.functional as F

from lexforge.losses.queue import KeyQueue


@pytest.mark.parametrize("batches", [[1], [3, 3], [2, 3, 2, 3], [7], [5, 7, 1, 6]])
def test_it_holds_the_last_keys_and_their_labels(batches: list[int]) -> None:
    """A deque of the same length is the oracle, at every step; the order does not matter to a loss."""
    torch.manual_seed(0)
    queue, expected = KeyQueue(7, 4, label_count=3), deque(maxlen=7)
    for rows in batches:
        keys, labels = torch.randn(rows, 4), torch.randint(0, 2, (rows, 3))
        queue.enqueue(keys, labels)
        expected.extend(
            (*key, *label)
            for key, label in zip(F.normalize(keys, dim=1).tolist(), labels.tolist(), strict=True)
        )
        held, held_labels = queue.contents()
        assert len(queue) == len(held) == len(expected)
        found = [(*key, *label) for key, label in zip(held.tolist(), held_labels.tolist(), strict=True)]
        assert sorted(found) == sorted(expected)
        assert held_labels.dtype == torch.uint8


def test_an_empty_queue_has_no_content() -> None:
    """Zero vectors in unfilled slots would be negatives of cosine 0."""
    keys, labels = KeyQueue(5, 3).contents()
    assert keys.shape == (0, 3)
    assert labels is None


def test_the_queue_may_move_on_before_backward() -> None:
    """A loss reads, enqueues and is differentiated later: what it read must not change under it."""
    queue = KeyQueue(2, 3)
    queue.enqueue(torch.eye(3)[:2])
    query = torch.ones(1, 3, requires_grad=True)
    product = (query @ queue.contents()[0].T).square().sum()
    queue.enqueue(torch.eye(3)[2:].repeat(2, 1))
    product.backward()
    assert query.grad.tolist() == [[2.0, 2.0, 0.0]]


def test_keys_enter_without_their_graph() -> None:
    """Else each step would hold the graphs of all steps before."""
    queue = KeyQueue(4, 3)
    queue.enqueue(torch.rand(2, 3, requires_grad=True))
    assert not queue.contents()[0].requires_grad
    assert list(queue.parameters()) == []


def test_its_state_is_three_tensors() -> None:
    """What is saved restores the queue, the place of the next key included."""
    torch.manual_seed(0)
    queue, other = KeyQueue(5, 2, 1), KeyQueue(5, 2, 1)
    for rows in (4, 3):
        queue.enqueue(torch.randn(rows, 2), torch.ones(rows, 1))
    other.load_state_dict(queue.state_dict())
    assert sorted(queue.state_dict()) == ["enqueued", "keys", "labels"]
    keys = torch.randn(2, 2)
    for one in (queue, other):
        one.enqueue(keys, torch.zeros(2, 1))
    torch.testing.assert_close(queue.contents(), other.contents(), rtol=0, atol=0)


def test_errors() -> None:
    """Sizes that mean nothing, and keys that do not belong here."""
    for size in (0, -1, 2.5):
        with pytest.raises(ValueError, match="positive integer"):
            KeyQueue(size, 3)
    queue = KeyQueue(2, 3)
    with pytest.raises(ValueError, match="queue of 2 is shorter than the 3 keys"):
        queue.enqueue(torch.rand(3, 3))
    with pytest.raises(ValueError, match="1 of 2 keys are NaN or infinite"):
        queue.enqueue(torch.tensor([[1.0, 2.0, 3.0], [1.0, float("nan"), float("inf")]]))
    assert len(queue) == 0
