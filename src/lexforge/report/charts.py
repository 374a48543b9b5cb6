"""The charts of the page, as Bokeh figures in JSON that the page's script puts into place.

A chart carries its text alternative and its numbers, for readers who do not see it. Colours have a contrast
of 3 or more with white and with the dark background alike; the script colours axes and grids by the theme.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bokeh.embed import json_item
from bokeh.models import (
    BoxAnnotation,
    ColumnDataSource,
    HoverTool,
    PrintfTickFormatter,
    Range1d,
    Slope,
    TapTool,
)
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
DASHES = ("solid", "dashed")  # of the first and the second run
HEIGHT = 260  # pixels
POINTS = 600  # points of a line, at most
ROWS = 20  # rows of the table of a chart, at most
FONT = "12px"


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
        legend: Pairs of name and colour, one per series that a reader may hide.
        note: A remark below the heading.
    """

    id: str
    title: str
    text: str
    item: dict[str, Any]
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    legend: Sequence[tuple[str, str, str]] = field(default_factory=tuple)
    note: str = ""


def number(value: float) -> str:
    """Format a number for a reader: three or four digits that matter."""
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.1f}"
    if abs(value) >= 10:
        return f"{value:.2f}"
    return f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.3g}"


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
    plot = _figure(HEIGHT)
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
        id, title, text, _item(plot), columns, rows, [(s.name, s.colour, s.dash) for s in series], note
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
    plot = _figure(HEIGHT)
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
        _item(plot),
        heads,
        rows,
        [(name, colours[name], "area") for name in names],
        note,
    )


def interval_chart(
    id: str, title: str, means: Sequence[tuple[str, float, tuple[float, float] | None]], measure: str
) -> Chart:
    """Draw the mean of each system with its confidence interval.

    Args:
        id: Id of its place in the page.
        title: Its heading.
        means: Name, mean and bounds of each system, from top to bottom.
        measure: Name of the measure.

    Returns:
        The chart.
    """
    names = [name for name, _, _ in means]
    plot = _figure(64 + 36 * len(names), y_range=names[::-1])
    colours = dict(zip(names, _cycle(len(names)), strict=True))
    bounded = [(name, bounds) for name, _, bounds in means if bounds is not None]
    plot.segment(
        x0=[bounds[0] for _, bounds in bounded],
        x1=[bounds[1] for _, bounds in bounded],
        y0=[name for name, _ in bounded],
        y1=[name for name, _ in bounded],
        line_color=[colours[name] for name, _ in bounded],
        line_width=3,
        line_cap="round",
        line_alpha=0.55,
    )
    points = plot.scatter(
        "x",
        "y",
        source=ColumnDataSource(
            {"x": [mean for _, mean, _ in means], "y": names, "colour": list(colours.values())}
        ),
        size=11,
        color="colour",
        line_color=None,
    )
    plot.add_tools(HoverTool(renderers=[points], tooltips=f"@y: {measure} @x{{0.000}}"))
    plot.xaxis.axis_label = measure
    plot.ygrid.visible = False
    text = " ".join(
        f"{name}: {number(mean)}" + (f", from {number(b[0])} to {number(b[1])}." if b else ".")
        for name, mean, b in means
    )
    return Chart(id, title, text, _item(plot))


def scatter_chart(
    id: str,
    title: str,
    queries: Sequence[tuple[str, float, float]],
    sampled: Mapping[str, int],
    names: tuple[str, str],
    comparison: str,
    measure: str,
) -> Chart:
    """Draw each query by its value in two systems; queries above the diagonal are won by the second.

    Args:
        id: Id of its place in the page.
        title: Its heading.
        queries: Id and values in the first and the second system, at least one.
        sampled: Id of a query whose texts the page has -> its place among them.
        names: What the page calls the two systems.
        comparison: How the second compares with the first, after "better", such as "after training than
            before".
        measure: Name of the measure.

    Returns:
        The chart. A click on a query selects its place; -1 has no texts.
    """
    import numpy as np

    plot = _figure(340, x_range=Range1d(-0.06, 1.06), y_range=Range1d(-0.06, 1.06))
    # Many queries have equal values; a small shift, the same at every drawing, shows how many.
    shift = np.random.default_rng(0).uniform(-0.018, 0.018, (len(queries), 2))
    first, second = (np.array([query[side] for query in queries]) for side in (1, 2))
    won, lost = second > first, second < first
    source = ColumnDataSource(
        {
            "x": (first + shift[:, 0]).round(4).tolist(),
            "y": (second + shift[:, 1]).round(4).tolist(),
            "first": first.round(3).tolist(),
            "second": second.round(3).tolist(),
            "place": [sampled.get(query, -1) for query, _, _ in queries],
            "query": [query for query, _, _ in queries],
            "colour": np.where(won, COLOURS[2], np.where(lost, COLOURS[4], COLOURS[9])).tolist(),
            "alpha": [0.75 if query in sampled else 0.25 for query, _, _ in queries],
        }
    )
    plot.add_layout(Slope(gradient=1, y_intercept=0, line_color="#7d8590", line_dash="dotted", line_width=1))
    points = plot.scatter(
        "x", "y", source=source, size=8, color="colour", fill_alpha="alpha", line_color=None, name="queries"
    )
    points.nonselection_glyph = None  # the others stay as they are
    points.selection_glyph = points.glyph.clone(line_color="#7d8590", line_width=3, size=13)
    tooltip = f"@query: {names[0]} @first{{0.000}}, {names[1]} @second{{0.000}}"
    plot.add_tools(HoverTool(renderers=[points], tooltips=tooltip), TapTool(renderers=[points]))
    plot.xaxis.axis_label = f"{measure}, {names[0]}"
    plot.yaxis.axis_label = f"{measure}, {names[1]}"
    text = (
        f"{int(won.sum())} of {len(queries)} queries are better {comparison}, {int(lost.sum())} are worse "
        f"and {int((first == second).sum())} are the same."
    )
    return Chart(id, title, text, _item(plot))


def histogram_chart(
    id: str, title: str, histograms: Sequence[tuple[str, Mapping[str, Any]]], what: str
) -> Chart:
    """Draw how many texts have how many active terms.

    Args:
        id: Id of its place in the page.
        title: Its heading.
        histograms: Name and statistics of each run, with `histogram` and `mean_active`.
        what: What is counted, such as "documents".

    Returns:
        The chart.
    """
    plot = _figure(HEIGHT)
    texts, rows, legend = [], [], []
    for place, (name, side) in enumerate(histograms):
        edges, counts = side["histogram"]["edges"], side["histogram"]["counts"]
        colour = COLOURS[place]
        source = ColumnDataSource(
            {"left": edges[:-1], "right": edges[1:], "last": [e - 1 for e in edges[1:]], "count": counts}
        )
        bars = plot.quad(
            left="left",
            right="right",
            top="count",
            bottom=0,
            source=source,
            fill_color=colour,
            fill_alpha=0.55,
            line_color=colour,
            line_alpha=0.9,
            name=name,
        )
        plot.add_tools(HoverTool(renderers=[bars], tooltips=f"@left to @last terms: @count {what}"))
        legend.append((name, colour, "area"))
        texts.append(
            f"{name}: {side['mean_active']:,.1f} active terms on average, from {side['min_active']:,} to "
            f"{side['max_active']:,}."
        )
        rows += [
            [name, f"{low:,} to {high - 1:,}", f"{count:,}"]
            for low, high, count in zip(edges, edges[1:], counts, strict=False)
        ]
    plot.y_range.start = 0
    plot.xaxis.axis_label = "active terms"
    plot.yaxis.axis_label = what
    return Chart(id, title, " ".join(texts), _item(plot), ["", "active terms", what], rows, legend)


def _figure(height: int, **ranges: Any) -> figure:
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


def _item(plot: figure) -> dict[str, Any]:
    item: dict[str, Any] = json_item(plot)
    return item


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


def _cycle(count: int) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(count)]
