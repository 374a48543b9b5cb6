"""How sure a mean over queries is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def confidence_interval(
    values: Sequence[float], *, level: float = 0.95, samples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Bound the mean of a measure by the percentile bootstrap over queries.

    Args:
        values: The value of each query, at least one.
        level: Probability with which the interval is to hold the mean, in (0, 1).
        samples: Number of resamples of the queries.
        seed: Seed of the resampling; the same values always give the same interval.

    Returns:
        The lower and the upper bound of the mean.

    Raises:
        ValueError: If there is no value, or the level lies outside (0, 1).

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13; for the measures of
    retrieval: Sakai, "Evaluating evaluation metrics based on the bootstrap", 2006.
    """
    if not len(values) or not 0 < level < 1:
        raise ValueError(
            f"at least one value and a level in (0, 1) are needed; received {len(values)} values and {level}"
        )
    numbers = np.asarray(values, dtype=np.float64)
    random = np.random.default_rng(seed)
    # One resample at a time, because all of them at once would take samples x queries numbers.
    means = [numbers[random.integers(0, len(numbers), len(numbers))].mean() for _ in range(samples)]
    lower, upper = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(lower), float(upper)
