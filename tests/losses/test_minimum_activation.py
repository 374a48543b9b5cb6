"""Minimum activation against sorted rows (docs/losses.md, section 6)."""

from __future__ import annotations

import pytest
import torch

from lexforge.losses.minimum_activation import minimum_activation


def naive(activations, top_k: int, threshold: float) -> float:
    rows = [max(0.0, threshold - sum(sorted(row)[-top_k:]) / top_k) for row in activations.tolist()]
    return sum(rows) / len(rows)


@pytest.mark.parametrize("seed", range(8))
def test_equals_a_loop(seed: int) -> None:
    """The mean of the k strongest is taken first, the hinge a row, then the mean over rows."""
    generator = torch.Generator().manual_seed(seed)
    rows, width = (int(torch.randint(1, 9, (), generator=generator)) for _ in range(2))
    top_k = int(torch.randint(1, width + 1, (), generator=generator))
    activations = torch.rand(rows, width, generator=generator, dtype=torch.float64)
    # the same float64 sums in another order; the hinge makes exact zeros
    assert minimum_activation(activations, top_k, 0.6).item() == pytest.approx(
        naive(activations, top_k, 0.6), rel=1e-12, abs=1e-14
    )


def test_a_dead_row_costs_the_floor_and_gets_a_gradient() -> None:
    """The term exists to bring such a row back: k terms are pushed up, whichever they are."""
    activations = torch.zeros(1, 8, requires_grad=True)
    loss = minimum_activation(activations, 2, 0.5)
    loss.backward()
    assert loss.item() == 0.5
    assert sorted(activations.grad[0].tolist()) == [-0.5, -0.5] + [0.0] * 6


@pytest.mark.parametrize("top_k", [0, -1, 5])
def test_top_k_lies_in_the_vocabulary(top_k: int) -> None:
    """A mean over none, or over more terms than there are, has no value."""
    with pytest.raises(ValueError, match=rf"\[1, 4\].*{top_k}"):
        minimum_activation(torch.rand(2, 4), top_k)
