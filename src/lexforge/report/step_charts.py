"""Charts over the steps of training: lines over a plain or a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bokeh.embed import json_item
from bokeh.models import (
    BasicTicker,
    BoxAnnotation,
    ColumnDataSource,
    HoverTool,
    PrintfTickFormatter,
    Range1d,
)

from lexforge.common.numbers import number
from lexforge.common.samples import evenly_spaced
from lexforge.report.charts import HEIGHT, Chart, empty_figure, value_range

DASHES = ("solid", "dashed")  # of the first and the second run
POINTS = 600  # points of a line, at most
ROWS = 20  # rows of the table of a chart, at most


@dataclass(frozen=True)
class Series:
    """A line of a chart.

    Args:
        name: What the legend calls it.
        steps: Where its values stand.
        values: Its values.
        colour: Its colour.
        dash: Its dash, such as "solid".
    """

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    colour: str
    dash: str = "solid"


def line_chart(
    id: str,
    title: str,
    series: Sequence[Series],
    *,
    phases: Sequence[tuple[float, float]] = (),
    from_zero: bool = False,
    logarithmic: bool = False,
    unit: str = "",
    note: str = "",
) -> Chart:
    """Draw lines over the steps of training.

    Args:
        id: Id of its place in the page.
        title: Its heading.
        series: Its lines, at least one, each with at least one value.
        phases: First and last step of each phase of the curriculum; every second one is shaded.
        from_zero: Whether the vertical axis begins at 0 for large values too (`value_range`).
        logarithmic: Whether the vertical axis has a logarithmic scale, where a value of 0 has no place: it
            leaves a gap in its line.
        unit: Unit of the values, which the vertical axis names.
        note: A remark below the heading.

    Returns:
        The chart.
    """
    plot = empty_figure(HEIGHT, y_axis_type="log" if logarithmic else "linear")
    for start, end in phases[1::2]:
        plot.add_layout(
            BoxAnnotation(left=start, right=end, fill_color="#7d8590", fill_alpha=0.1, line_alpha=0)
        )
    lines = []
    for line in series:
        kept = evenly_spaced(len(line.values), POINTS)
        source = ColumnDataSource(
            {
                "x": [line.steps[place] for place in kept],
                "y": [_short(line.values[place], positive=logarithmic) for place in kept],
                "name": [line.name] * len(kept),
            }
        )
        lines.append(
            plot.line(
                "x",
                "y",
                source=source,
                line_color=line.colour,
                line_dash=line.dash,
                line_width=1.8,
                name=line.name,
            )
        )
        if len(kept) <= 40 and line.dash != "dotted":
            plot.scatter("x", "y", source=source, size=4, color=line.colour, line_color=None, name=line.name)
    plot.add_tools(HoverTool(renderers=lines, tooltips="@name: @y{0.[0000]} at step @x{0,0}", mode="mouse"))
    plot.xaxis.axis_label = "step"
    plot.xaxis.ticker = BasicTicker(min_interval=1)  # no half steps in a short run
    plot.x_range = Range1d(0, 1.02 * max(max(line.steps) for line in series))
    values = [value for line in series for value in line.values]
    if logarithmic:
        plot.y_range = _log_range(values)
    else:
        plot.y_range = value_range(values, from_zero=from_zero)
    if logarithmic or max(values) < 0.01:
        plot.yaxis.formatter = PrintfTickFormatter(format="%.2g")
    if unit:
        plot.yaxis.axis_label = unit
    text = " ".join(
        f"{line.name}: {number(line.values[0])} at step {line.steps[0]:,.0f}, "
        f"{number(line.values[-1])} at step {line.steps[-1]:,.0f}."
        for line in series
    )
    columns, rows = _table(series)
    return Chart(
        id, title, text, json_item(plot), columns, rows, [(s.name, s.colour, s.dash) for s in series], note
    )


def _log_range(values: Sequence[float]) -> Range1d:
    """From below the smallest positive value to above the largest one, over two to six powers of ten.

    Bokeh labels a logarithmic axis of less than two like a plain one, with all labels near its upper end.
    """
    positive = [value for value in values if 0 < value < math.inf] or [1.0]
    highest = max(positive)
    return Range1d(max(min(0.7 * min(positive), 0.01 * highest), 1e-6 * highest), 1.3 * highest)


def _table(series: Sequence[Series]) -> tuple[list[str], list[list[str]]]:
    """The numbers of lines: one row per step, over at most `ROWS` evenly spaced steps."""
    steps = sorted({step for line in series for step in line.steps})
    values = [dict(zip(line.steps, line.values, strict=True)) for line in series]
    rows = []
    for place in evenly_spaced(len(steps), ROWS):
        step = steps[place]
        cells = [number(known[step]) if step in known else "" for known in values]
        rows.append([f"{step:,.0f}", *cells])
    return ["step", *(line.name for line in series)], rows


def _short(value: float, *, positive: bool = False) -> float:
    """A number with six digits, which a chart cannot tell from all of them; NaN, a gap, if it must be > 0."""
    return math.nan if positive and value <= 0 else float(f"{value:.6g}")
