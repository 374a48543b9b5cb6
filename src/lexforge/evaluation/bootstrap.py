"""How sure a mean over queries is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SAMPLES = 2000  # resamples of the queries


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Bound the mean of a measure by the percentile bootstrap over queries, with a probability of 95 %.

    Args:
        values: The value of each query, at least one.

    Returns:
        The lower and the upper bound of the mean; the same values always give the same bounds.

    Raises:
        ValueError: If there is no value.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13; for the measures of
    retrieval: Sakai, "Evaluating evaluation metrics based on the bootstrap", 2006.
    """
    if not len(values):
        raise ValueError("at least one value is needed; received none")
    numbers = np.asarray(values, dtype=np.float64)
    random = np.random.default_rng(0)
    # One resample at a time, because all of them at once would take samples x queries numbers.
    means = [numbers[random.integers(0, len(numbers), len(numbers))].mean() for _ in range(SAMPLES)]
    lower, upper = np.quantile(means, [0.025, 0.975])
    return float(lower), float(upper)
