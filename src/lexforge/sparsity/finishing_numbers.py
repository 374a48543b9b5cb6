"""The ranges of the numbers that finish the trained weights; a command line checks them without torch."""

from __future__ import annotations

import math


def check_finishing_numbers(
    *, start_share: float = 0.0, prune_threshold: float = 0.0, average_horizon: float = 0.0
) -> None:
    """Refuse a number out of its range.

    Args:
        start_share: Share of the weights before training in the finished weights, in [0, 1).
        prune_threshold: What the logit of a term must exceed to stay active, finite and >= 0.
        average_horizon: Steps of the running average as a share of all steps, in [0, 1].

    Raises:
        ValueError: If a number is out of range.
    """
    if not 0 <= start_share < 1:
        raise ValueError(f"start_share must lie in [0, 1); received {start_share}")
    if not 0 <= prune_threshold < math.inf:
        raise ValueError(f"prune_threshold must be finite and >= 0; received {prune_threshold}")
    if not 0 <= average_horizon <= 1:
        raise ValueError(f"average_horizon must lie in [0, 1]; received {average_horizon}")
