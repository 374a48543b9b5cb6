"""Positive activation against a loop over token sets (docs/losses.md, section 3)."""

from __future__ import annotations

import pytest
import torch

from lexforge.losses.positive_activation import positive_activation


def naive(anchor, input_ids, attention_mask, special) -> float:
    rows = []
    for values, ids, mask in zip(anchor.tolist(), input_ids.tolist(), attention_mask.tolist(), strict=True):
        tokens = {token for token, kept in zip(ids, mask, strict=True) if kept and token not in special}
        rows.append(sum(values[token] for token in tokens) / len(tokens) if tokens else 0.0)
    return -sum(rows) / len(rows)


def case(seed: int):
    generator = torch.Generator().manual_seed(seed)
    rows, length, vocabulary = (int(torch.randint(2, 8, (), generator=generator)) for _ in range(3))
    return (
        3 * torch.rand(rows, vocabulary, generator=generator, dtype=torch.float64),
        torch.randint(vocabulary, (rows, length), generator=generator),
        torch.randint(2, (rows, length), generator=generator),
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("special", [(), (0, 1)])
def test_equals_a_loop(seed: int, special: tuple[int, ...]) -> None:
    """T_p is a set: repeats count once, padding and special tokens not at all."""
    anchor, ids, mask = case(seed)
    # the same float64 sums in another order
    assert positive_activation(anchor, ids, mask, special).item() == pytest.approx(
        naive(anchor, ids, mask, special), rel=1e-12, abs=1e-15
    )


def test_a_positive_without_tokens_adds_zero() -> None:
    """An empty or special-only text has no mean; it must not divide by zero nor leave the batch's mean."""
    anchor = torch.tensor([[2.0, 3.0], [4.0, 5.0], [6.0, 8.0]], requires_grad=True)
    loss = positive_activation(
        anchor, torch.tensor([[1, 1], [0, 0], [1, 1]]), torch.tensor([[1, 1], [1, 1], [0, 0]]), (0,)
    )
    loss.backward()
    assert loss.item() == -1.0
    torch.testing.assert_close(anchor.grad, torch.tensor([[0.0, -1 / 3], [0.0, 0.0], [0.0, 0.0]]))


def test_an_infinite_activation_outside_the_set_does_not_poison_it() -> None:
    """Masking by multiplication would turn inf * 0 into NaN."""
    anchor = torch.tensor([[float("inf"), 1.0]], requires_grad=True)
    loss = positive_activation(anchor, torch.tensor([[1]]), torch.tensor([[1]]))
    loss.backward()
    assert loss.item() == -1.0
    assert anchor.grad.tolist() == [[0.0, -1.0]]
