"""The set of distinct tokens of a text, as a mask over the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def token_set(
    input_ids: Tensor, attention_mask: Tensor, vocabulary_size: int, excluded_ids: Sequence[int] = ()
) -> Tensor:
    """The distinct unmasked tokens of each row as a mask over the vocabulary.

    Args:
        input_ids: `[B, L]` integer, token ids in `[0, vocabulary_size)` wherever the mask is set.
        attention_mask: `[B, L]` integer or bool, 0 at padding.
        vocabulary_size: Width V of the mask.
        excluded_ids: Token ids that never belong to the set, such as special tokens.

    Returns:
        `[B, V]` bool.

    Raises:
        ValueError: If the two inputs differ in shape or an unmasked id lies outside the vocabulary.
    """
    if input_ids.dim() != 2 or input_ids.shape != attention_mask.shape:
        raise ValueError(
            "input_ids and attention_mask must both be [B, L]; "
            f"received {tuple(input_ids.shape)} and {tuple(attention_mask.shape)}"
        )
    # Padding is written to one extra column that is cut off, so that no id has to be repaired.
    columns = torch.where(attention_mask.bool(), input_ids, vocabulary_size)
    if columns.numel() and not (int(columns.min()) >= 0 and int(columns.max()) <= vocabulary_size):
        raise ValueError(
            f"token ids must lie in [0, {vocabulary_size}); "
            f"received ids from {int(columns.min())} to {int(columns.max())}"
        )
    members = torch.zeros(
        len(input_ids), vocabulary_size + 1, dtype=torch.bool, device=input_ids.device
    ).scatter_(1, columns, True)[:, :vocabulary_size]
    if len(excluded_ids):
        members[:, torch.as_tensor(excluded_ids, dtype=torch.long, device=input_ids.device)] = False
    return members
