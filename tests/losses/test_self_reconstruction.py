"""Self-reconstruction against the cross-entropy of each element (docs/losses.md, section 2)."""

from __future__ import annotations

import math

import pytest
import torch

from lexforge.losses.self_reconstruction import self_reconstruction


def naive(activations, input_ids, attention_mask) -> float:
    total, count = 0.0, 0
    for row, ids, mask in zip(activations.tolist(), input_ids.tolist(), attention_mask.tolist(), strict=True):
        for term, value in enumerate(row):
            present = any(token == term and kept for token, kept in zip(ids, mask, strict=True))
            probability = 1 / (1 + math.exp(-value))
            total -= math.log(probability) if present else math.log(1 - probability)
            count += 1
    return total / count


def case(seed: int):
    generator = torch.Generator().manual_seed(seed)
    rows, length, vocabulary = (int(torch.randint(1, 8, (), generator=generator)) for _ in range(3))
    return (
        3 * torch.rand(rows, vocabulary, generator=generator, dtype=torch.float64),
        torch.randint(vocabulary, (rows, length), generator=generator),
        torch.randint(2, (rows, length), generator=generator),
    )


@pytest.mark.parametrize("seed", range(6))
def test_equals_a_loop(seed: int) -> None:
    """The formula is the original, with repeated tokens counted once and padding not at all."""
    activations, ids, mask = case(seed)
    # float64; the loop's log(1 - p) loses a few digits
    assert self_reconstruction(activations, ids, mask).item() == pytest.approx(
        naive(activations, ids, mask), rel=1e-12
    )


def test_a_row_without_tokens_costs_log_2_a_dimension() -> None:
    """All padding is a row whose target is empty, not an error."""
    activations = torch.zeros(2, 3, requires_grad=True)
    loss = self_reconstruction(activations, torch.full((2, 2), -100), torch.zeros(2, 2))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2))
    # d softplus(0) = 1/2, over 6 elements
    torch.testing.assert_close(activations.grad, torch.full((2, 3), 1 / 12))


def test_large_activations_stay_finite() -> None:
    """exp(1e4) overflows; the loss is softplus in its stable form."""
    activations = torch.tensor([[1e4, 1e4]], requires_grad=True)
    loss = self_reconstruction(activations, torch.tensor([[0]]), torch.tensor([[1]]))
    loss.backward()
    assert loss.item() == pytest.approx(5e3)
    torch.testing.assert_close(activations.grad, torch.tensor([[0.0, 0.5]]))
