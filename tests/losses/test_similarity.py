"""Dot product and cosine against plain loops."""

from __future__ import annotations

import math

import pytest
import torch

from lexforge.losses.similarity import scores_of_columns


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_equals_a_loop(seed: int, similarity: str) -> None:
    """Training and search both rank by these numbers."""
    generator = torch.Generator().manual_seed(seed)
    rows, candidates, width = (int(torch.randint(1, 7, (), generator=generator)) for _ in range(3))
    left = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    right = torch.randn(candidates, width, generator=generator, dtype=torch.float64)
    expected = []
    for a in left.tolist():
        row = []
        for b in right.tolist():
            dot = sum(x * y for x, y in zip(a, b, strict=True))
            norms = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
            row.append(dot / norms if similarity == "cosine" else dot)
        expected.append(row)
    expected = torch.tensor(expected, dtype=torch.float64)
    # float64 sums of fewer than ten products
    torch.testing.assert_close(scores_of_columns(left, [right], similarity), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_gradients(similarity: str) -> None:
    """The gradient of both sides is right in float64."""
    torch.manual_seed(0)
    left = torch.rand(3, 5, dtype=torch.float64, requires_grad=True)
    right = torch.rand(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: scores_of_columns(a, [b], similarity), (left, right))


def test_a_zero_vector_has_cosine_zero_and_no_gradient() -> None:
    """A row without an active term is common early in training; 0/0 would end it, and 1e12 spoil a step."""
    left = torch.zeros(1, 3, requires_grad=True)
    right = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], requires_grad=True)
    scores = scores_of_columns(left, [right], "cosine")
    scores.sum().backward()
    assert scores.tolist() == [[0.0, 0.0]]
    assert not left.grad.any()
    assert not right.grad.any()


def test_an_unknown_similarity_is_named() -> None:
    """A typing error must not fall through to one of the two."""
    with pytest.raises(ValueError, match="'Cosine'"):
        scores_of_columns(torch.ones(1, 2), [torch.ones(1, 2)], "Cosine")
