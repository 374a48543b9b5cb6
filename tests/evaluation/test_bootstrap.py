"""The confidence interval of a mean over queries."""

from __future__ import annotations

import numpy as np
import pytest

from lexforge.evaluation import confidence_interval


def test_the_interval_is_that_of_scipy() -> None:
    """An independent implementation; 2,000 resamples leave about 2 % of the width to chance."""
    from scipy import stats

    values = np.random.default_rng(1).beta(0.5, 0.5, 80)
    expected = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=9000, rng=np.random.default_rng(2)
    ).confidence_interval
    low, high = confidence_interval(values.tolist())
    assert low == pytest.approx(expected.low, abs=0.01)
    assert high == pytest.approx(expected.high, abs=0.01)
    assert confidence_interval(values.tolist()) == (low, high)


def test_equal_values_leave_no_doubt_and_nothing_is_refused() -> None:
    """One query gives its own value; no query gives no mean."""
    assert confidence_interval([0.5, 0.5, 0.5]) == (0.5, 0.5)
    with pytest.raises(ValueError, match="received none"):
        confidence_interval([])
