"""What all charts of the page share: Bokeh figures in JSON that the page's script puts into place.

A chart carries its text alternative and its numbers, for readers who do not see it. Colours have a contrast
of 3 or more with white and with the dark background alike; the script colours axes and grids by the theme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bokeh.models import Range1d
from bokeh.plotting import figure

# Blue, orange, green, purple, red, teal, brown, pink, olive, grey.
COLOURS = (
    "#3b7dd8",
    "#d9730d",
    "#2f9e5b",
    "#9065d0",
    "#d6455d",
    "#0f97a3",
    "#a8703a",
    "#c44f9e",
    "#868a1d",
    "#7d8590",
)
HEIGHT = 260  # pixels
FONT = "12px"


@dataclass(frozen=True)
class Chart:
    """A chart of the page.

    Args:
        id: Id of its place in the page.
        title: Its heading.
        text: Its text alternative, as whole sentences.
        item: The figure as Bokeh's JSON.
        columns: Heads of the table of its numbers.
        rows: Rows of that table; empty where the page has them elsewhere.
        legend: Name, colour and dash (or "area") of each series that a reader may hide.
        note: A remark below the heading.
    """

    id: str
    title: str
    text: str
    item: dict[str, Any]
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    legend: Sequence[tuple[str, str, str]] = ()
    note: str = ""


def empty_figure(height: int, **ranges: Any) -> figure:
    """An empty figure, as wide as its place, with no background of its own and no scrolling by accident."""
    plot = figure(
        height=height, sizing_mode="stretch_width", tools="", toolbar_location=None, min_width=200, **ranges
    )
    plot.background_fill_color = plot.border_fill_color = plot.outline_line_color = None
    plot.min_border = 4
    for axis in (*plot.xaxis, *plot.yaxis):
        axis.axis_label_text_font = axis.major_label_text_font = "system-ui, sans-serif"
        axis.axis_label_text_font_size = axis.major_label_text_font_size = FONT
        axis.axis_label_text_font_style = "normal"
        axis.minor_tick_line_color = None
        axis.axis_line_color = None
        axis.major_tick_line_color = None
    plot.xgrid.visible = False
    return plot


def value_range(values: Iterable[float], *, from_zero: bool = False) -> Range1d:
    """The range of an axis, which begins where a reader expects it.

    An axis begins at 0, unless all values lie in the upper quarter of it. There it begins at a round number
    below the lowest value, so that a small change of large values can be seen.

    Args:
        values: What is drawn along the axis; infinite values and NaN do not count.
        from_zero: Whether the axis begins at 0 for large values too; negative values begin below it.

    Returns:
        The range. It ends a little above the highest value, or 0 where all values are negative.
    """
    drawn = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(drawn), max(drawn)
    if low >= 0 and (from_zero or low <= 0.75 * high or low == high):
        low = 0.0
    else:
        high = max(high, 0.0) if low < 0 else high
        step = 10 ** math.floor(math.log10((high - low) or 1))
        low = math.floor(low / step) * step
    return Range1d(low, high + 0.06 * (high - low) if high > low else low + 1)
