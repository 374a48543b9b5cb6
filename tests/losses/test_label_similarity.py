"""Similarity of label pairs against counts in a loop (docs/losses.md, section 14)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lexforge.losses.label_similarity import (
    check_label_similarity,
    compute_label_pair_similarity,
)


def naive(rows: list[list[int]], method: str) -> list[list[float]]:
    count = len(rows[0])
    result = [[0.0] * count for _ in range(count)]
    for i in range(count):
        for j in range(count):
            n_i = sum(row[i] for row in rows)
            n_j = sum(row[j] for row in rows)
            n_both = sum(row[i] * row[j] for row in rows)
            if i == j:
                value = 1.0
            elif method == "jaccard":
                value = n_both / (n_i + n_j - n_both) if n_i + n_j else 0.0
            elif not n_both:
                value = 0.0
            elif n_both == len(rows):
                value = 1.0
            else:
                p_i, p_j, p_both = n_i / len(rows), n_j / len(rows), n_both / len(rows)
                value = (math.log(p_both / (p_i * p_j)) / -math.log(p_both) + 1) / 2
            result[i][j] = value
    return result


@pytest.mark.parametrize("method", ["npmi", "jaccard"])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("density", [0.05, 0.4, 0.9])
def test_equals_a_loop(method: str, seed: int, density: float) -> None:
    """Random label matrices with labels that nobody, some and everybody carry."""
    generator = np.random.default_rng(seed)
    labels = (generator.random((generator.integers(1, 12), generator.integers(1, 6))) < density).astype(int)
    similarity = compute_label_pair_similarity(labels, method=method)
    assert similarity.dtype == np.float32
    # float32 of float64 arithmetic; jaccard adds 1e-10 to the union
    np.testing.assert_allclose(similarity, naive(labels.tolist(), method), atol=1e-6)
    np.testing.assert_array_equal(similarity, similarity.T)
    assert (similarity.diagonal() == 1).all()
    assert 0 <= similarity.min() <= similarity.max() <= 1


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_takes_tensors_and_arrays_of_any_dtype(dtype: torch.dtype) -> None:
    """The collator makes integers, a queue holds bytes, users pass what they have."""
    rows = [[1, 1, 0], [0, 1, 1], [1, 0, 0]]
    expected = compute_label_pair_similarity(np.array(rows), "npmi")
    labels = torch.tensor(rows).to(dtype)
    np.testing.assert_array_equal(compute_label_pair_similarity(labels, "npmi"), expected)
    np.testing.assert_array_equal(compute_label_pair_similarity(labels.numpy(), "npmi"), expected)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 0], r"\[N, L\].*received \(2,\)"),
        (np.zeros((0, 3)), r"no text.*\(0, 3\)"),
        ([[1, 0], [-1, 0]], "row 1 holds -1 for label 0"),
        ([[1, 2]], "row 0 holds 2 for label 1"),
        ([[0.5, 1.0]], "0.5"),
        ([[float("nan"), 1.0]], "nan"),
    ],
)
def test_labels_that_are_no_multi_hot_matrix_are_refused(labels, message: str) -> None:
    """A count of -1 texts would give a similarity outside [0, 1] without a word."""
    with pytest.raises(ValueError, match=message):
        compute_label_pair_similarity(np.array(labels), "npmi")


def test_the_method_has_no_default() -> None:
    """The definition asks for an explicit choice."""
    with pytest.raises(ValueError, match="'cosine'"):
        compute_label_pair_similarity(np.eye(2), "cosine")
    with pytest.raises(TypeError, match="method"):
        compute_label_pair_similarity(np.eye(2))


@pytest.mark.parametrize(
    ("similarity", "message"),
    [
        (torch.ones(2, 3), r"\[L, L\].*\(2, 3\)"),
        (torch.tensor(1.0), r"\[L, L\].*\(\)"),
        (torch.ones(0, 0), r"\[L, L\].*\(0, 0\)"),
        (torch.tensor([[1.0, -0.1], [-0.1, 1.0]]), r"in \[0, 1\].*0 and 1 have -0.1"),
        (torch.tensor([[1.0, 1.5], [1.5, 1.0]]), "1.5"),
        (torch.full((2, 2), float("nan")), "nan"),
        (torch.tensor([[1.0, 0.2], [0.3, 1.0]]), r"symmetric; \[0, 1\] is 0.2.*\[1, 0\] is 0.3"),
    ],
)
def test_a_similarity_that_is_none_is_refused(similarity, message: str) -> None:
    """Not square, not in [0, 1], not symmetric: said with the place."""
    with pytest.raises(ValueError, match=message):
        check_label_similarity(similarity)


def test_zeros_are_a_similarity() -> None:
    """They weigh all negatives alike: the ablation, and the loss for labels that never occur together."""
    check_label_similarity(torch.zeros(3, 3))
