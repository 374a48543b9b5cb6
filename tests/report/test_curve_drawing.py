"""The drawing of curves: places of points, a text for those who do not see it, and what has no place."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from lexforge.report import Panel, draw_curves

SVG = "{http://www.w3.org/2000/svg}"
CURVES = {"level": [(16.0, 0.2), (64.0, 0.5), (32.0, 0.4)], "limit": [(16.0, 0.1), (64.0, 0.45)]}


def panel(**changes) -> Panel:
    return Panel(
        **{"title": "a", "x_label": "terms", "y_label": "nDCG", "curves": CURVES, "single": {}} | changes
    )


def test_points_stand_in_the_order_of_their_numbers_on_a_logarithmic_scale() -> None:
    """32 lies in the middle between 16 and 64, and a better point lies higher."""
    drawn = ElementTree.fromstring(draw_curves("t", [panel()], "text"))
    lines = [
        [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]
        for line in drawn.iter(f"{SVG}polyline")
    ]
    assert [len(line) for line in lines] == [3, 2]
    (first, middle, last), (low, _) = lines
    assert middle[0] == pytest.approx((first[0] + last[0]) / 2, abs=0.1)
    assert first[1] > middle[1] > last[1]  # from the top down
    assert low[1] > first[1]
    assert low[0] == first[0]
    assert (first[1] - middle[1]) == pytest.approx(2 * (middle[1] - last[1]), abs=0.2)


def test_names_and_the_text_are_escaped_and_shown() -> None:
    """A model or a folder may have any name."""
    drawn = ElementTree.fromstring(draw_curves("a < b & c", [panel(single={"x<y": (40.0, 0.3)})], "1 < 2"))
    assert drawn.findtext(f"{SVG}title") == "a < b & c"
    assert drawn.findtext(f"{SVG}desc") == "1 < 2"
    words = [each.text for each in drawn.iter(f"{SVG}text")]
    for word in ("a < b & c", "x<y", "level", "limit", "terms", "nDCG", "50", "0.4"):
        assert word in words


def test_a_short_axis_has_numbers_too() -> None:
    """Between 60 and 90 lies no 1, 2 or 5 times a power of ten, and the axis had none."""
    drawn = ElementTree.fromstring(
        draw_curves("t", [panel(curves={"a": [(60.0, 0.2), (90.0, 0.3)]})], "text")
    )
    assert {"60", "90"} <= {each.text for each in drawn.iter(f"{SVG}text")}


def test_every_point_lies_inside_its_panel() -> None:
    """Also where all values are equal, and where they are tiny or large."""
    for curve in (
        [(3.0, 0.5)],
        [(0.001, 0.0), (900.0, 0.0)],
        [(5.0, -2e-5), (5.1, 3e-5)],
        [(1.0, 4e5), (9.0, 7.0)],
    ):
        drawn = ElementTree.fromstring(draw_curves("t", [panel(curves={"one": curve})], "text"))
        for line in drawn.iter(f"{SVG}polyline"):
            for place in line.attrib["points"].split():
                x, y = map(float, place.split(","))
                assert 58 <= x <= 420
                assert 34 <= y <= 254


@pytest.mark.parametrize("point", [(0.0, 0.5), (1.0, float("nan"))])
def test_a_point_without_a_place_is_refused(point: tuple[float, float]) -> None:
    """A drawing must not leave out what was measured."""
    with pytest.raises(ValueError, match="a point needs finite numbers and x > 0"):
        draw_curves("t", [panel(curves={"one": [point]})], "text")
