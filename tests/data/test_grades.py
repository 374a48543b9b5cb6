"""The rule for grades."""

from __future__ import annotations

import numpy as np
import pytest

from lexforge.data import DataError
from lexforge.data.grades import check_grade, parse_grade


@pytest.mark.parametrize("grade", [0, -1, 9999, -9999, 2.0, np.int32(3), np.float64(4)])
def test_integers_pass_and_become_int(grade) -> None:
    """Hub data sets hold grades as floats, arrays as numpy's numbers."""
    assert check_grade("here", grade) == grade
    assert type(check_grade("here", grade)) is int


@pytest.mark.parametrize("grade", [10_000, 1e300, 0.5, float("inf"), float("nan"), "1", None, 10**400])
def test_all_else_is_refused(grade) -> None:
    """With the place and what is allowed."""
    with pytest.raises(DataError, match=r"^here: .* integer grade from -9999 to 9999; received "):
        check_grade("here", grade)


@pytest.mark.parametrize("text", ["1_0", "1.0", " 1", "", "\u0661", "0x1", "10000", "9" * 5000])
def test_only_decimal_digits_are_parsed(text: str) -> None:
    """`int` alone would read underscores, spaces and the digits of other scripts."""
    assert [parse_grade("here", good) for good in ("0", "+2", "-1", "0003")] == [0, 2, -1, 3]
    with pytest.raises(DataError, match="here: the score must be an integer grade"):
        parse_grade("here", text)
