"""The weights of references against sums over labels written out (docs/losses.md, section 14 and 3)."""

from __future__ import annotations

import math

import pytest
import torch

from lexforge.losses.reference_weights import largest_over_labels, reference_weights


def weights(query_labels, section_labels, similarity, with_prototypes=True, **settings):
    given = {"alpha": 1.0, "beta": 1.0, "aggregate": "mean", "eps": 0.0} | settings
    return reference_weights(query_labels, section_labels, with_prototypes, similarity, **given)


def test_by_hand() -> None:
    """Query {0, 1} among keys {0}, {0, 1}, {2}, none, and three prototypes; alpha 1.

    Shares: 1/2 for {0} (one of two labels), 1/2 for {0, 1}. D_0 = 1/2 + 1/2 + 1 - 1/2 = 3/2 and D_1 = 1/2 +
    1/2 = 1. So the keys weigh (1/2)/(3/2) = 1/3 and 1/3 + 1/2 = 5/6, the prototypes 2/3 and 1. Of the
    negatives, {2} weighs 1 - (.2 + .6)/2 or 1 - .6, the key without a label and prototype 2 weigh 1; beta
    is 3 for keys.
    """
    query = torch.tensor([[1.0, 1.0, 0.0]])
    keys = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 0]], dtype=torch.uint8)
    similarity = torch.tensor([[1.0, 0.9, 0.2], [0.9, 1.0, 0.6], [0.2, 0.6, 1.0]])
    for aggregate, alike in (("mean", 0.4), ("max", 0.6)):
        positive, log_negative = weights(query, [keys], similarity, aggregate=aggregate, beta=3.0)
        expected = torch.tensor([[1 / 3, 5 / 6, 0, 0, 2 / 3, 1, 0]])
        torch.testing.assert_close(positive, expected)
        expected = torch.tensor([[0, 0, 3 * (1 - alike), 3, 0, 0, 1]])
        torch.testing.assert_close(log_negative.exp(), expected)
        assert log_negative[0, 0] == -math.inf


def test_sections_share_one_normaliser() -> None:
    """Keys and queue are one set of references: split or joined, every weight is the same."""
    generator = torch.Generator().manual_seed(0)
    query = (torch.rand(5, 6, generator=generator) < 0.4).float()
    labels = (torch.rand(9, 6, generator=generator) < 0.4).to(torch.uint8)
    similarity = torch.rand(6, 6, generator=generator)
    similarity = (similarity + similarity.T) / 2
    for aggregate in ("mean", "max"):
        joined = weights(query, [labels], similarity, aggregate=aggregate, alpha=0.3)
        split = weights(query, [labels[:4], labels[4:]], similarity, aggregate=aggregate, alpha=0.3)
        for one, other in zip(joined, split, strict=True):
            torch.testing.assert_close(one, other)


def test_prototypes_can_be_left_out() -> None:
    """The columns of keys stay as they are."""
    query, labels = torch.eye(3), torch.eye(3)
    with_them = weights(query, [labels], torch.eye(3))
    without = weights(query, [labels], torch.eye(3), with_prototypes=False)
    for one, other in zip(with_them, without, strict=True):
        assert torch.equal(one[:, :3], other)
        assert other.shape == (3, 3)


@pytest.mark.parametrize("seed", range(4))
def test_the_largest_over_labels_equals_a_loop(seed: int) -> None:
    """Row by row; a row without a label gets 0."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(5, 3, generator=generator)
    labels = (torch.rand(7, 5, generator=generator) < 0.3).to(torch.uint8)
    labels[0] = 0
    found = largest_over_labels(values, labels)
    for row, carried in zip(found.tolist(), labels.tolist(), strict=True):
        chosen = [values[label].tolist() for label in range(5) if carried[label]]
        assert row == pytest.approx([max((v[i] for v in chosen), default=0.0) for i in range(3)])
