"""FLOPS, its IDF-aware form and the penalty weights written out (docs/losses.md, section 5)."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
import torch

from lexforge.losses.flops import flops, idf_flops, idf_penalty_weights


def case(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows, width = (int(torch.randint(1, 9, (), generator=generator)) for _ in range(2))
    activations = 3 * torch.rand(rows, width, generator=generator, dtype=torch.float64)
    return activations, 20 * torch.rand(width, generator=generator, dtype=torch.float64)


def column_means(activations: torch.Tensor) -> list[float]:
    return [fmean(column) for column in zip(*activations.tolist(), strict=True)]


@pytest.mark.parametrize("seed", range(6))
def test_flops_equals_a_loop(seed: int) -> None:
    """The mean over the batch is squared, not the values."""
    activations, _ = case(seed)
    # the same float64 sums in another order
    assert flops(activations).item() == pytest.approx(
        sum(mean * mean for mean in column_means(activations)), rel=1e-12
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("l2_ratio", [0.0, 0.3, 2.0])
def test_idf_flops_equals_a_loop(seed: int, l2_ratio: float) -> None:
    """Weighted L1 plus beta times weighted L2, both of the mean activation."""
    activations, weights = case(seed)
    expected = sum(
        weight * abs(mean) + l2_ratio * weight * mean * mean
        for weight, mean in zip(weights.tolist(), column_means(activations), strict=True)
    )
    assert idf_flops(activations, weights, l2_ratio).item() == pytest.approx(expected, rel=1e-12)


def test_dead_activations_have_a_finite_gradient() -> None:
    """|a| has a kink at 0, where most of the vocabulary sits."""
    activations = torch.zeros(2, 3, requires_grad=True)
    loss = idf_flops(activations, torch.ones(3)) + flops(activations)
    loss.backward()
    assert loss.item() == 0
    assert activations.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 3)])
def test_weights_of_another_vocabulary_are_refused(shape: tuple[int, ...]) -> None:
    """A scalar or a single weight would broadcast over the vocabulary."""
    with pytest.raises(ValueError, match=r"penalty_weights.*\[3\]"):
        idf_flops(torch.rand(2, 3), torch.ones(shape))


def seed_weights(idf, alpha, special, special_penalty, stopwords, stopword_penalty) -> list[float]:
    """Section 5 of docs/losses.md, a list at a time."""
    real = [value for token, value in enumerate(idf) if token not in special]
    low, high = min(real), max(real)
    weights = [math.exp(-alpha * (value - low) / (high - low)) for value in idf]
    for token in set(stopwords):
        weights[token] *= stopword_penalty
    for token in special:
        weights[token] = special_penalty
    return weights


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("settings", [(4.0, 100.0, 15.0), (2.5, 1.0, 5.0), (0.0, 0.0, 1.0)])
def test_penalty_weights_equal_the_seed(seed: int, settings: tuple[float, float, float]) -> None:
    """The weights decide what the model may activate; V25 failed by one wrong range."""
    alpha, special_penalty, stopword_penalty = settings
    generator = torch.Generator().manual_seed(seed)
    width = int(torch.randint(6, 20, (), generator=generator))
    idf = 8 * torch.rand(width, generator=generator, dtype=torch.float64)
    special, stopwords = [0, 1, width - 1], [2, 4, 2]
    idf[special] = 50.0  # never seen in a corpus: df = 0, the largest idf
    weights = idf_penalty_weights(idf, alpha, special, special_penalty, stopwords, stopword_penalty)
    expected = seed_weights(idf.tolist(), alpha, special, special_penalty, stopwords, stopword_penalty)
    assert weights.tolist() == pytest.approx(expected, rel=1e-12)


def test_a_stop_word_that_is_special_keeps_the_fixed_penalty() -> None:
    """The fixed penalty is what the word says."""
    weights = idf_penalty_weights(torch.tensor([1.0, 2.0]), special_token_ids=[1], stopword_ids=[1])
    assert weights.tolist() == [1.0, 100.0]


def test_equal_idf_gives_equal_weights() -> None:
    """An idf without a range (a one-document corpus) is flat, not NaN."""
    weights = idf_penalty_weights(torch.full((3,), 2.0), special_token_ids=[0], stopword_ids=[1])
    assert weights.tolist() == [100.0, 15.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"idf": torch.ones(2, 2)}, r"\[V\].*\(2, 2\)"),
        ({"idf": torch.tensor([1.0, float("nan")])}, "1 non-finite"),
        ({"idf": torch.tensor([1.0, float("inf")])}, "1 non-finite"),
        ({"alpha": -1.0}, r"alpha.*-1\.0"),
        ({"alpha": float("nan")}, "alpha.*nan"),
        ({"special_penalty": -1.0}, r"special_penalty.*-1\.0"),
        ({"stopword_penalty": -1.0}, r"stopword_penalty.*-1\.0"),
        ({"special_token_ids": [4]}, r"special_token_ids.*\[0, 4\).*4"),
        ({"stopword_ids": [-1, 0]}, r"stopword_ids.*\[0, 4\).*-1"),
        ({"special_token_ids": [0, 1, 2, 3]}, "no term"),
        ({"idf": torch.ones(0)}, "no term"),
    ],
)
def test_errors(arguments: dict, message: str) -> None:
    """One clear error for each wrong argument."""
    with pytest.raises(ValueError, match=message):
        idf_penalty_weights(**{"idf": torch.arange(4.0), **arguments})
