"""Samples are spread over what they are taken from."""

from __future__ import annotations

import pytest

from lexforge.common.samples import evenly_spaced


@pytest.mark.parametrize(
    ("count", "most", "places"),
    [(0, 3, []), (3, 3, [0, 1, 2]), (2, 9, [0, 1]), (9, 1, [0]), (9, 3, [0, 4, 8]), (10, 4, [0, 3, 6, 9])],
)
def test_a_sample_begins_at_the_first_place_and_ends_at_the_last(
    count: int, most: int, places: list[int]
) -> None:
    """A set that fits is taken whole, and a set of nothing has no place 0."""
    assert evenly_spaced(count, most) == places
