"""The token set against plain Python sets."""

from __future__ import annotations

import pytest
import torch

from lexforge.losses.tokens import token_set


def naive_sets(input_ids, attention_mask, excluded=()) -> list[set[int]]:
    return [
        {token for token, kept in zip(row, mask, strict=True) if kept} - set(excluded)
        for row, mask in zip(input_ids.tolist(), attention_mask.tolist(), strict=True)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_equals_python_sets(seed: int) -> None:
    """Every term that reads tokens stands on this mask."""
    generator = torch.Generator().manual_seed(seed)
    rows, length, vocabulary = (int(torch.randint(1, 9, (), generator=generator)) for _ in range(3))
    ids = torch.randint(vocabulary, (rows, length), generator=generator)
    mask = torch.randint(2, (rows, length), generator=generator)
    excluded = (0, vocabulary - 1)
    members = token_set(ids, mask, vocabulary, excluded)
    assert members.dtype == torch.bool
    assert members.shape == (rows, vocabulary)
    assert [set(row.nonzero().flatten().tolist()) for row in members] == naive_sets(ids, mask, excluded)


@pytest.mark.parametrize("padding", [-100, -1, 5, 10**6])
def test_padding_may_hold_any_id(padding: int) -> None:
    """Collators pad with 0, -100 or an id beyond the model's vocabulary; none of them is a token."""
    ids = torch.tensor([[1, 3, padding], [padding, padding, padding]])
    members = token_set(ids, torch.tensor([[1, 1, 0], [0, 0, 0]]), 5)
    assert members.tolist() == [[False, True, False, True, False], [False] * 5]


@pytest.mark.parametrize("wrong", [-1, 5, 6])
def test_a_token_outside_the_vocabulary_is_refused(wrong: int) -> None:
    """A tokenizer of another model must not train silently on the wrong terms, not even one id too far."""
    with pytest.raises(ValueError, match=rf"\[0, 5\).*{wrong}"):
        token_set(torch.tensor([[1, wrong]]), torch.tensor([[1, 1]]), 5)


@pytest.mark.parametrize("excluded", [(-1,), (0, 5)])
def test_an_excluded_id_outside_the_vocabulary_is_refused(excluded: tuple[int, ...]) -> None:
    """A negative id would index from the end and drop an innocent term."""
    with pytest.raises(ValueError, match=r"excluded_ids.*\[0, 5\)"):
        token_set(torch.tensor([[1]]), torch.tensor([[1]]), 5, excluded)


def test_shapes_must_agree() -> None:
    """A mask of another column would broadcast or cut silently."""
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(2, 4\)"):
        token_set(torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 4), 5)
    with pytest.raises(ValueError, match=r"\[B, L\]"):
        token_set(torch.zeros(3, dtype=torch.long), torch.ones(3), 5)


@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (0, 0)])
def test_no_token_at_all(shape: tuple[int, int]) -> None:
    """An empty batch has no smallest id to check."""
    members = token_set(torch.zeros(shape, dtype=torch.long), torch.zeros(shape), 5)
    assert members.shape == (shape[0], 5)
    assert not members.any()


def test_int32_ids_and_a_boolean_mask() -> None:
    """Tokenizers of some back ends give int32; the documented type is any integer."""
    members = token_set(torch.tensor([[2, 0]], dtype=torch.int32), torch.tensor([[True, False]]), 3)
    assert members.tolist() == [[False, False, True]]
