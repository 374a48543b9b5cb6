"""The triplet margin against a loop over rows (docs/losses.md, section 4)."""

from __future__ import annotations

import math

import pytest
import torch

from lexforge.losses.triplet import triplet_margin


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / (math.hypot(*a) * math.hypot(*b))


def naive(anchor, positive, negative, margin: float) -> float:
    rows = [
        max(0.0, margin - cosine(a, p) + cosine(a, n))
        for a, p, n in zip(anchor.tolist(), positive.tolist(), negative.tolist(), strict=True)
    ]
    return sum(rows) / len(rows)


def case(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = [int(torch.randint(2, 8, (), generator=generator)) for _ in range(2)]
    return [torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(3)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("margin", [0.0, 0.3, 1.0])
def test_equals_a_loop(seed: int, margin: float) -> None:
    """Margin minus positive plus negative, hinged row by row before the mean."""
    rows = case(seed)
    # float64 rounding of a few sums; the hinge makes exact zeros
    assert triplet_margin(*rows, margin).item() == pytest.approx(naive(*rows, margin), rel=1e-12, abs=1e-14)


def test_zero_vectors_cost_the_margin() -> None:
    """A row without an active term has cosine 0 to both, and its gradient stays finite."""
    anchor = torch.zeros(2, 3, requires_grad=True)
    positive, negative = torch.rand(2, 3, requires_grad=True), torch.zeros(2, 3, requires_grad=True)
    loss = triplet_margin(anchor, positive, negative, 0.3)
    loss.backward()
    assert loss.item() == pytest.approx(0.3)
    assert all(values.grad.isfinite().all() for values in (anchor, positive, negative))


def test_errors() -> None:
    """A negative margin rewards the wrong order; one negative row would broadcast over the batch."""
    rows = torch.rand(2, 3)
    with pytest.raises(ValueError, match=r"margin.*-0\.1"):
        triplet_margin(rows, rows, rows, -0.1)
    with pytest.raises(ValueError, match=r"margin.*nan"):
        triplet_margin(rows, rows, rows, float("nan"))
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(1, 3\)"):
        triplet_margin(rows, rows, rows[:1])
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(3, 3\)"):
        triplet_margin(rows, torch.rand(3, 3), rows)
    with pytest.raises(ValueError, match=r"\[B, D\]"):
        triplet_margin(rows[0], rows[0], rows[0])
