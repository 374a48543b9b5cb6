"""The set of distinct tokens of a text, as a mask over the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def token_set(
    input_ids: Tensor, attention_mask: Tensor, vocabulary_size: int, excluded_ids: Sequence[int] = ()
) -> Tensor:
    """Mark the distinct unmasked tokens of each row in a mask over the vocabulary.

    Args:
        input_ids: `[B, L]` integer, token ids in `[0, vocabulary_size)` wherever the mask is set.
        attention_mask: `[B, L]` integer or bool, 0 at padding.
        vocabulary_size: Width V of the mask.
        excluded_ids: Token ids that never belong to the set, such as special tokens.

    Returns:
        `[B, V]` bool.

    Raises:
        ValueError: If the two inputs differ in shape, or an unmasked or excluded id lies outside the
            vocabulary.
    """
    if input_ids.dim() != 2 or input_ids.shape != attention_mask.shape:
        raise ValueError(
            "input_ids and attention_mask must both be [B, L]; "
            f"received {tuple(input_ids.shape)} and {tuple(attention_mask.shape)}"
        )
    if len(excluded_ids) and not (min(excluded_ids) >= 0 and max(excluded_ids) < vocabulary_size):
        raise ValueError(
            f"excluded_ids must lie in [0, {vocabulary_size}); "
            f"received ids from {min(excluded_ids)} to {max(excluded_ids)}"
        )
    kept = attention_mask.bool()
    outside = kept & ((input_ids < 0) | (input_ids >= vocabulary_size))
    if outside.any():
        raise ValueError(
            f"token ids must lie in [0, {vocabulary_size}); "
            f"received {input_ids[outside].unique().tolist()[:5]}"
        )
    # Padding is written to one extra column, which is cut off, so that no id has to be changed.
    columns = torch.where(kept, input_ids, vocabulary_size).long()
    members = torch.zeros(
        len(input_ids), vocabulary_size + 1, dtype=torch.bool, device=input_ids.device
    ).scatter_(1, columns, True)[:, :vocabulary_size]
    if len(excluded_ids):
        members[:, torch.as_tensor(excluded_ids, dtype=torch.long, device=input_ids.device)] = False
    return members


def check_rows(activations: Tensor, input_ids: Tensor) -> None:
    """Refuse tokens of another number of texts, which would broadcast over the rows.

    Args:
        activations: `[B, V]`.
        input_ids: `[B, L]`.

    Raises:
        ValueError: If the two differ in their number of rows.
    """
    if len(activations) != len(input_ids):
        raise ValueError(
            f"the tokens must be of the same texts as the activations: {len(activations)} rows of "
            f"activations, {len(input_ids)} rows of tokens"
        )
