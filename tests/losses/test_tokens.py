"""The distinct tokens against plain Python sets."""

from __future__ import annotations

import pytest
import torch

from lexforge.losses.tokens import distinct_tokens


def tokens_of(ids, mask, vocabulary: int, excluded=()):
    return distinct_tokens(torch.empty(len(ids), vocabulary), ids, mask, excluded)


def sets_of(*arguments) -> list[set[int]]:
    """The tokens of each row, each of which must be marked once, in ascending order."""
    ids, counted = tokens_of(*arguments)
    assert (ids.dtype, counted.dtype) == (torch.int64, torch.bool)
    marked = [row[chosen].tolist() for row, chosen in zip(ids, counted, strict=True)]
    assert marked == [sorted(set(row)) for row in marked]
    return [set(row) for row in marked]


def naive_sets(input_ids, attention_mask, excluded=()) -> list[set[int]]:
    return [
        {token for token, kept in zip(row, mask, strict=True) if kept} - set(excluded)
        for row, mask in zip(input_ids.tolist(), attention_mask.tolist(), strict=True)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_equals_python_sets(seed: int) -> None:
    """Every term that reads tokens stands on these."""
    generator = torch.Generator().manual_seed(seed)
    rows, length, vocabulary = (int(torch.randint(1, 9, (), generator=generator)) for _ in range(3))
    ids = torch.randint(vocabulary, (rows, length), generator=generator)
    mask = torch.randint(2, (rows, length), generator=generator)
    excluded = (0, vocabulary - 1)
    assert sets_of(ids, mask, vocabulary) == naive_sets(ids, mask)
    for given in (excluded, torch.tensor(excluded)):
        assert sets_of(ids, mask, vocabulary, given) == naive_sets(ids, mask, excluded)


@pytest.mark.parametrize("padding", [-100, -1, 5, 10**6])
def test_padding_may_hold_any_id(padding: int) -> None:
    """Collators pad with 0, -100 or an id beyond the model's vocabulary; none of them is a token."""
    ids = torch.tensor([[1, 3, padding], [padding, padding, padding]])
    assert sets_of(ids, torch.tensor([[1, 1, 0], [0, 0, 0]]), 5) == [{1, 3}, set()]


@pytest.mark.parametrize("wrong", [-1, 5, 6])
def test_a_token_outside_the_vocabulary_is_refused(wrong: int) -> None:
    """A tokenizer of another model must not train silently on the wrong terms, not even one id too far."""
    with pytest.raises(ValueError, match=rf"\[0, 5\).*{wrong}"):
        tokens_of(torch.tensor([[1, wrong]]), torch.tensor([[1, 1]]), 5)


@pytest.mark.parametrize("excluded", [(-1,), (0, 5)])
def test_an_excluded_id_outside_the_vocabulary_is_refused(excluded: tuple[int, ...]) -> None:
    """An id that no token has would leave nothing out, and say nothing."""
    with pytest.raises(ValueError, match=r"excluded_ids.*\[0, 5\)"):
        tokens_of(torch.tensor([[1]]), torch.tensor([[1]]), 5, excluded)


def test_shapes_must_agree() -> None:
    """A mask of another column would broadcast or cut silently."""
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(2, 4\)"):
        tokens_of(torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 4), 5)
    with pytest.raises(ValueError, match=r"\[B, L\]"):
        tokens_of(torch.zeros(3, dtype=torch.long), torch.ones(3), 5)
    with pytest.raises(ValueError, match="4 rows of activations, 1 rows of tokens"):
        distinct_tokens(torch.empty(4, 5), torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 3))


@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (0, 0)])
def test_no_token_at_all(shape: tuple[int, int]) -> None:
    """An empty batch has no smallest id to check."""
    assert sets_of(torch.zeros(shape, dtype=torch.long), torch.zeros(shape), 5) == [set()] * shape[0]


def test_int32_ids_and_a_boolean_mask() -> None:
    """Tokenizers of some back ends give int32; the documented type is any integer."""
    assert sets_of(torch.tensor([[2, 0]], dtype=torch.int32), torch.tensor([[True, False]]), 3) == [{2}]
