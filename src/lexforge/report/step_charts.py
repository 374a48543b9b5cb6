"""Charts over the steps of training: lines, and shares of a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bokeh.models import BoxAnnotation, ColumnDataSource, HoverTool, PrintfTickFormatter, Range1d

from lexforge.report.charts import HEIGHT, Chart, empty_figure, in_json
from lexforge.report.verdict import number

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
        width: Its width in pixels.
    """

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    colour: str
    dash: str = "solid"
    width: float = 1.8


def line_chart(
    id: str,
    title: str,
    series: Sequence[Series],
    *,
    phases: Sequence[tuple[float, float]] = (),
    from_zero: bool = False,
    note: str = "",
) -> Chart:
    """Draw lines over the steps of training.

    Args:
        id: Id of its place in the page.
        title: Its heading.
        series: Its lines, at least one, each with at least one value.
        phases: First and last step of each phase of the curriculum; every second one is shaded.
        from_zero: Whether the vertical axis begins at 0.
        note: A remark below the heading.

    Returns:
        The chart.
    """
    plot = empty_figure(HEIGHT)
    for place, (start, end) in enumerate(phases):
        shade = 0.10 if place % 2 else 0.0
        plot.add_layout(
            BoxAnnotation(left=start, right=end, fill_color="#7d8590", fill_alpha=shade, line_alpha=0)
        )
    lines = []
    for line in series:
        kept = _evenly(len(line.values), POINTS)
        source = ColumnDataSource(
            {
                "x": [line.steps[place] for place in kept],
                "y": [_short(line.values[place]) for place in kept],
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
                line_width=line.width,
                name=line.name,
            )
        )
        if len(kept) <= 40 and line.dash != "dotted":
            plot.scatter("x", "y", source=source, size=4, color=line.colour, line_color=None, name=line.name)
    plot.add_tools(HoverTool(renderers=lines, tooltips="@name: @y{0.[0000]} at step @x{0,0}", mode="mouse"))
    plot.xaxis.axis_label = "step"
    top = max(max(line.values) for line in series)
    if top < 0.01:
        plot.yaxis.formatter = PrintfTickFormatter(format="%.2g")
    if from_zero:
        plot.y_range = Range1d(0, top * 1.08 if top > 0 else 1)
    text = " ".join(
        f"{line.name}: {number(line.values[0])} at step {line.steps[0]:,.0f}, "
        f"{number(line.values[-1])} at step {line.steps[-1]:,.0f}."
        for line in series
    )
    columns, rows = _table(series)
    return Chart(
        id, title, text, in_json(plot), columns, rows, [(s.name, s.colour, s.dash) for s in series], note
    )


def share_chart(
    id: str,
    title: str,
    steps: Sequence[float],
    shares: Mapping[str, Sequence[float]],
    colours: Mapping[str, str],
    note: str = "",
) -> Chart:
    """Draw shares of a whole as bands that fill the chart.

    Args:
        id: Id of its place in the page.
        title: Its heading.
        steps: Where the values stand.
        shares: Name of a part -> its shares, from 0 to 1, one per step.
        colours: Name of a part -> its colour.
        note: A remark below the heading.

    Returns:
        The chart.
    """
    plot = empty_figure(HEIGHT)
    kept = _evenly(len(steps), POINTS)
    columns = {name: [_short(100 * values[place]) for place in kept] for name, values in shares.items()}
    source = ColumnDataSource({"step": [steps[place] for place in kept]} | columns)
    names = list(shares)
    bands = plot.varea_stack(
        names, x="step", source=source, color=[colours[name] for name in names], fill_alpha=0.75
    )
    for name, band in zip(names, bands, strict=True):
        band.name = name
    plot.y_range = Range1d(0, 100)
    plot.xaxis.axis_label = "step"
    plot.yaxis.axis_label = "percent"
    last = ", ".join(f"{name} {columns[name][-1]:.0f} %" for name in names)
    first = ", ".join(f"{name} {columns[name][0]:.0f} %" for name in names)
    series = [Series(f"{name} (%)", steps, [100 * value for value in shares[name]], "") for name in names]
    heads, rows = _table(series)
    return Chart(
        id,
        title,
        f"At first {first}. At the end {last}.",
        in_json(plot),
        heads,
        rows,
        [(name, colours[name], "area") for name in names],
        note,
    )


def _table(series: Sequence[Series]) -> tuple[list[str], list[list[str]]]:
    """The numbers of lines: one row per step, over at most `ROWS` evenly spaced steps."""
    steps = sorted({step for line in series for step in line.steps})
    values = [dict(zip(line.steps, line.values, strict=True)) for line in series]
    rows = []
    for place in _evenly(len(steps), ROWS):
        step = steps[place]
        cells = [number(known[step]) if step in known else "" for known in values]
        rows.append([f"{step:,.0f}", *cells])
    return ["step", *(line.name for line in series)], rows


def _evenly(count: int, most: int) -> list[int]:
    """At most `most` evenly spaced positions of `count`, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(place * (count - 1) / (most - 1)) for place in range(most)]


def _short(value: float) -> float:
    """A number with six digits, which a chart cannot tell from all of them."""
    return float(f"{value:.6g}")
