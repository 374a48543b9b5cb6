"""Own activation against a loop over the tokens of each text (docs/losses.md, section 20)."""

from __future__ import annotations

import pytest
import torch

from lexforge.losses.own_activation import own_activation, word_weights


def naive(activations, ids, mask, weights, floor: float) -> float:
    total = 0.0
    for row, own, kept in zip(activations.tolist(), ids.tolist(), mask.tolist(), strict=True):
        words = {token for token, one in zip(own, kept, strict=True) if one}
        weight = sum(float(weights[word]) for word in words)
        cost = sum(float(weights[word]) * max(0.0, floor - row[word]) for word in words)
        total += cost / weight if weight else 0.0
    return total / len(activations)


@pytest.mark.parametrize("seed", range(8))
def test_equals_a_loop(seed: int) -> None:
    """Repeated tokens count once, padding and tokens of weight 0 not at all; a text without any adds 0."""
    generator = torch.Generator().manual_seed(seed)
    rows, length, width = 5, 7, 6  # so few tokens repeat
    activations = 2 * torch.rand(rows, width, generator=generator, dtype=torch.float64)
    ids = torch.randint(width, (rows, length), generator=generator)
    mask = (torch.rand(rows, length, generator=generator) < 0.7).long()
    mask[0] = 0
    weights = torch.rand(width, generator=generator, dtype=torch.float64)
    weights[2] = 0
    ids[1] = 2
    # the same float64 sums in another order
    assert own_activation(activations, ids, mask, weights, 1.3).item() == pytest.approx(
        naive(activations, ids, mask, weights, 1.3), rel=1e-12
    )


def test_shapes_must_agree() -> None:
    """One weight per term, one row of tokens per text."""
    ids = torch.ones(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"word_weights must be \[5\].*\(4,\)"):
        own_activation(torch.rand(2, 5), ids, ids, torch.ones(4))
    with pytest.raises(ValueError, match="1 rows"):
        own_activation(torch.rand(1, 5), ids, ids, torch.ones(5))


def test_word_weights_are_idf_without_special_tokens_and_stop_words() -> None:
    """Words that say nothing of a text weigh nothing, and the idf that was given stays as it is."""
    idf = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert word_weights(idf, [0], [2, 2]).tolist() == [0.0, 2.0, 0.0, 4.0]
    assert idf.tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("wrong", [-1, 4])
def test_ids_of_word_weights_lie_in_the_vocabulary(wrong: int) -> None:
    """A negative id counted from the end of the vocabulary, and took its weight from another term."""
    for ids in (([wrong], []), ([0], [1, wrong])):
        with pytest.raises(ValueError, match=rf"ids must lie in \[0, 4\); received .*{wrong}"):
            word_weights(torch.ones(4), *ids)
