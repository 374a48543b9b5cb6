"""Which terms a SPLADE encoder should not use; `restrict_output_vocabulary` bans them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from transformers import PreTrainedTokenizerBase


def special_token_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of [CLS], [SEP] and the like, which stand in every text and so are useless to a search.

    Args:
        tokenizer: The model's tokenizer.

    Returns:
        Sorted ids.
    """
    return sorted(tokenizer.all_special_ids)


def unseen_term_ids(document_frequency: ArrayLike) -> list[int]:
    """Return the terms that occur in no document.

    Args:
        document_frequency: `[V]`, how many documents hold each term; >= 0.

    Returns:
        Sorted ids.

    Raises:
        ValueError: If the frequencies are not a list of numbers, or if one is negative or not finite.
    """
    frequency = np.asarray(document_frequency)
    if frequency.ndim != 1 or not np.isfinite(frequency).all() or (frequency < 0).any():
        raise ValueError(
            f"document_frequency must be [V], finite and >= 0; received shape {frequency.shape}"
            + (f" with smallest value {frequency.min()}" if frequency.size else "")
        )
    return np.flatnonzero(frequency == 0).tolist()
