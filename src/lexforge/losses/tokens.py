"""The distinct tokens of a text, at which the terms of the loss read its vector."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def distinct_tokens(
    activations: Tensor,
    input_ids: Tensor,
    attention_mask: Tensor,
    excluded_ids: Sequence[int] | Tensor = (),
) -> tuple[Tensor, Tensor]:
    """List the unmasked tokens of each row and mark each distinct one once, without a mask over V.

    Args:
        activations: `[B, V]`, the vectors that are read at the tokens.
        input_ids: `[B, L]` integer, token ids in `[0, V)` wherever the mask is set.
        attention_mask: `[B, L]` integer or bool, 0 at padding.
        excluded_ids: Token ids that are never marked, such as special tokens; as a tensor on the device of
            `input_ids` they are not copied there at every call.

    Returns:
        The ids in ascending order, `[B, L]` int64 below V, and `[B, L]` bool: true at the first place of each
        distinct token.

    Raises:
        ValueError: If ids and mask differ in shape, they are not of as many texts as the activations, or an
            unmasked or excluded id lies outside the vocabulary. Unmasked ids on an accelerator are checked
            there, by what reads a vector at them: a check here would make the host wait for the device.
    """
    if input_ids.dim() != 2 or input_ids.shape != attention_mask.shape:
        raise ValueError(
            "input_ids and attention_mask must both be [B, L]; "
            f"received {tuple(input_ids.shape)} and {tuple(attention_mask.shape)}"
        )
    rows, vocabulary_size = activations.shape
    if len(input_ids) != rows:
        raise ValueError(
            f"the tokens must be of the same texts as the activations: {rows} rows of activations, "
            f"{len(input_ids)} rows of tokens"
        )
    kept = attention_mask.bool()
    if input_ids.device.type == "cpu":
        _check_on_cpu(input_ids.numpy()[kept.numpy()], vocabulary_size, "token ids")
    _check_on_cpu(excluded_ids, vocabulary_size, "excluded_ids")
    # Padding goes to the end, and an id from V on beyond it, where no vector can be read.
    ids = input_ids.long() + (input_ids >= vocabulary_size)
    ids = torch.where(kept, ids, vocabulary_size).sort(dim=1).values
    counted = ids != vocabulary_size
    ids = ids.masked_fill(~counted, 0)
    counted[:, 1:] &= ids[:, 1:] != ids[:, :-1]
    if len(excluded_ids):
        counted &= ~torch.isin(ids, torch.as_tensor(excluded_ids, device=ids.device))
    return ids, counted


def _check_on_cpu(ids: Sequence[int] | NDArray | Tensor, vocabulary_size: int, name: str) -> None:
    """Refuse ids outside the vocabulary, by numpy: nothing is launched and no device is waited for.

    Ids on an accelerator are left alone.
    """
    if isinstance(ids, Tensor):
        if ids.device.type != "cpu":
            return
        ids = ids.numpy()
    values = np.asarray(ids)
    outside = np.unique(values[(values < 0) | (values >= vocabulary_size)])
    if len(outside):
        raise ValueError(f"{name} must lie in [0, {vocabulary_size}); received {outside.tolist()[:5]}")
