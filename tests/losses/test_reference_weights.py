"""The weights of references against sums over labels written out (docs/losses.md, section 14 and 3)."""

from __future__ import annotations

import math

import torch

from lexforge.losses.reference_weights import reference_weights


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
