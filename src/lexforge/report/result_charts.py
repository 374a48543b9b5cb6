"""Charts of results: means with their intervals, queries in two systems, active terms per text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, HoverTool, Range1d, Slope, TapTool

from lexforge.common.numbers import number
from lexforge.report.charts import COLOURS, HEIGHT, Chart, empty_figure, value_range
from lexforge.report.run_files import RunFiles, headline_of
from lexforge.report.verdict import interval, system_name


def headline_chart(runs: Sequence[RunFiles]) -> Chart | None:
    """Draw the headline measure of every system with its interval, or None if nothing was measured.

    Two runs have the colours that they have in the charts of training.
    """
    measure = headline_of(runs)
    if measure is None:
        return None
    means = [
        (
            system_name(run, system, runs),
            values[measure],
            interval(run, system, measure),
            COLOURS[place],
        )
        for place, run in enumerate(runs)
        for system, values in run.metrics.items()
        if measure in values
    ]
    names = [name for name, *_ in means]
    plot = empty_figure(64 + 36 * len(names), y_range=names[::-1])
    bounded = [(name, bounds, colour) for name, _, bounds, colour in means if bounds is not None]
    plot.segment(
        x0=[bounds[0] for _, bounds, _ in bounded],
        x1=[bounds[1] for _, bounds, _ in bounded],
        y0=[name for name, *_ in bounded],
        y1=[name for name, *_ in bounded],
        line_color=[colour for *_, colour in bounded],
        line_width=3,
        line_cap="round",
        line_alpha=0.55,
    )
    points = plot.scatter(
        "x",
        "y",
        source=ColumnDataSource(
            {"x": [mean for _, mean, *_ in means], "y": names, "colour": [colour for *_, colour in means]}
        ),
        size=11,
        color="colour",
        line_color=None,
    )
    # Bokeh reads a tooltip of one text as HTML, but shows the label of a row as it is.
    plot.add_tools(HoverTool(renderers=[points], tooltips=[("system", "@y"), (measure, "@x{0.000}")]))
    plot.xaxis.axis_label = measure
    plot.x_range = value_range(
        [*(mean for _, mean, *_ in means), *(bound for _, bounds, _ in bounded for bound in bounds)],
        from_zero=True,
    )
    plot.ygrid.visible = False
    text = " ".join(
        f"{name}: {number(mean)}" + (f", from {number(b[0])} to {number(b[1])}." if b else ".")
        for name, mean, b, _ in means
    )
    title = f"{measure} on the test queries" if runs[0].scores else measure
    return Chart("headline", title, text, json_item(plot))


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
    plot = empty_figure(340, x_range=Range1d(-0.06, 1.06), y_range=Range1d(-0.06, 1.06))
    # Many queries have equal values; a small shift, the same at every drawing, shows how many.
    shift = np.random.default_rng(0).uniform(-0.018, 0.018, (len(queries), 2))
    first, second = (np.array([query[system] for query in queries]) for system in (1, 2))
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
    tooltips = [("query", "@query"), (names[0], "@first{0.000}"), (names[1], "@second{0.000}")]
    plot.add_tools(HoverTool(renderers=[points], tooltips=tooltips), TapTool(renderers=[points]))
    plot.xaxis.axis_label = f"{measure}, {names[0]}"
    plot.yaxis.axis_label = f"{measure}, {names[1]}"
    text = (
        f"Better {comparison}: {int(won.sum())} of {len(queries)} queries. Worse: {int(lost.sum())}. "
        f"The same: {int((first == second).sum())}."
    )
    return Chart(id, title, text, json_item(plot))


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
    plot = empty_figure(HEIGHT)
    texts, rows, legend, note = [], [], [], ""
    if len(histograms) > 1:
        note = (
            f"The height of a bar is its number of {what} divided by its width, because the bars of two runs "
            "may differ in width."
        )
    for place, (name, statistics) in enumerate(histograms):
        edges, counts = statistics["histogram"]["edges"], statistics["histogram"]["counts"]
        colour = COLOURS[place]
        source = ColumnDataSource(
            {
                "left": edges[:-1],
                "right": edges[1:],
                "last": [e - 1 for e in edges[1:]],
                "count": counts,
                "top": (counts / np.diff(edges)).tolist() if note else counts,
            }
        )
        bars = plot.quad(
            left="left",
            right="right",
            top="top",
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
            f"{name}: {statistics['mean_active']:,.1f} active terms on average, from "
            f"{statistics['min_active']:,} to {statistics['max_active']:,}."
        )
        rows += [
            [name, f"{low:,} to {high - 1:,}", f"{count:,}"]
            for low, high, count in zip(edges, edges[1:], counts, strict=False)
        ]
    plot.y_range.start = 0
    plot.x_range = value_range(
        edge for _, statistics in histograms for edge in statistics["histogram"]["edges"]
    )
    plot.xaxis.axis_label = "active terms"
    plot.yaxis.axis_label = what
    columns = ["", "active terms", what]
    return Chart(id, title, " ".join(texts), json_item(plot), columns, rows, legend, note)
