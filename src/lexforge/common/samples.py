"""Which of many things are looked at where a sample is enough."""

from __future__ import annotations

import numpy as np


def evenly_spaced(count: int, most: int) -> list[int]:
    """Choose places that are spread evenly over a sequence, because its beginning often has one source.

    Args:
        count: Length of the sequence.
        most: The largest number of places, at least 1.

    Returns:
        All places from 0 to `count` - 1 if these are at most `most`. Otherwise `most` of them in ascending
        order, the first and the last among them if `most` is above 1.
    """
    return np.linspace(0, count - 1, min(count, most)).astype(int).tolist()
