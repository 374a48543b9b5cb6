"""Charts of results: means with their intervals, queries won and lost, active terms per text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, HoverTool, Range1d, Slope, TapTool

from lexforge.common.numbers import number
from lexforge.evaluation import SYSTEM_NAMES, RunScores
from lexforge.report.charts import COLOURS, HEIGHT, Chart, empty_figure, value_range
from lexforge.report.record import TRAINED
from lexforge.report.run_files import RunFiles, headline_of, other_measurement
from lexforge.report.verdict import interval, system_name

LISTED = 5  # clearest wins and losses


@dataclass(frozen=True)
class Duel:
    """Two systems query by query.

    Args:
        chart: Their values as a scatter chart.
        won: The queries that the second system wins most clearly: place among the sampled ones, text, and
            both values.
        lost: The same for the queries that it loses.
    """

    chart: Chart
    won: list[tuple[int, str, str]]
    lost: list[tuple[int, str, str]]


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


def duels(runs: Sequence[RunFiles], sampled: Sequence[dict[str, tuple[int, str]]]) -> list[Duel]:
    """Compare the trained model with BM25 and with the start, and the trained models of two runs.

    Args:
        runs: One run, or two to compare.
        sampled: For each run, id of a query whose texts the page has -> its place among them and its text.

    Returns:
        The comparisons for which the values of each query are there.
    """
    measure = headline_of(runs)
    if measure is None:
        return []
    found = []
    if len(runs) == 2 and not other_measurement(*runs):
        one, other = runs
        systems = [(run.name, run.scores.get(TRAINED)) for run in runs]
        comparison = f"in {other.name} than in {one.name}"
        heading, texts = f"{other.name} against {one.name}", sampled[1] | sampled[0]
        found.append(_duel("duel-runs", heading, systems, comparison, measure, texts))
    for system, against, comparison in (
        ("bm25", "BM25", "after training than with BM25"),
        ("initial", "the model before training", "after training than before"),
    ):
        for place, run in enumerate(runs):  # those of two runs stand side by side
            heading = f"{run.name} against {against}" if len(runs) > 1 else f"Against {against}"
            systems = [(SYSTEM_NAMES[name], run.scores.get(name)) for name in (system, TRAINED)]
            id = f"duel-{system}-{place}"
            found.append(_duel(id, heading, systems, comparison, measure, sampled[place]))
    return [duel for duel in found if duel is not None]


def _duel(
    id: str,
    title: str,
    systems: Sequence[tuple[str, RunScores | None]],
    comparison: str,
    measure: str,
    sampled: Mapping[str, tuple[int, str]],
) -> Duel | None:
    """Draw each query by its value in two systems; queries above the diagonal are won by the second.

    Args:
        id: Id of the chart's place in the page.
        title: Its heading.
        systems: What the page calls each of the two, and its scores; without both nothing is compared.
        comparison: How the second compares with the first, after "better", such as "after training than
            before".
        measure: Name of the measure.
        sampled: As for `duels`. A click on a query selects its place; -1 has no texts.
    """
    names, scores = zip(*systems, strict=True)
    one, other = (each.per_query.get(measure, {}) if each is not None else {} for each in scores)
    queries = [(query, one[query], other[query]) for query in one if query in other]
    if not queries:
        return None
    plot = empty_figure(340, x_range=Range1d(-0.06, 1.06), y_range=Range1d(-0.06, 1.06))
    # Many queries have equal values; a small shift, the same at every drawing, shows how many.
    shift = np.random.default_rng(0).uniform(-0.018, 0.018, (len(queries), 2))
    first, second = (np.array([query[system] for query in queries]) for system in (1, 2))
    better, worse = second > first, second < first
    source = ColumnDataSource(
        {
            "x": (first + shift[:, 0]).round(4).tolist(),
            "y": (second + shift[:, 1]).round(4).tolist(),
            "first": first.round(3).tolist(),
            "second": second.round(3).tolist(),
            "place": [sampled[query][0] if query in sampled else -1 for query, _, _ in queries],
            "query": [query for query, _, _ in queries],
            "colour": np.where(better, COLOURS[2], np.where(worse, COLOURS[4], COLOURS[9])).tolist(),
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
        f"Better {comparison}: {int(better.sum())} of {len(queries)} queries. Worse: {int(worse.sum())}. "
        f"The same: {int((first == second).sum())}."
    )
    known = [
        (after - before, *sampled[query], f"{number(before)} to {number(after)}")
        for query, before, after in queries
        if query in sampled
    ]
    won = sorted((row for row in known if row[0] > 0), key=lambda row: -row[0])[:LISTED]
    lost = sorted((row for row in known if row[0] < 0), key=lambda row: row[0])[:LISTED]
    chart = Chart(id, title, text, json_item(plot))
    return Duel(chart, [row[1:] for row in won], [row[1:] for row in lost])


def histogram_charts(runs: Sequence[RunFiles]) -> list[Chart]:
    """Draw how many texts have how many active terms: documents and queries apart, both runs in one chart."""
    described = [(run.name, run.terms) for run in runs if run.terms is not None]
    if not described:
        return []
    return [
        _histogram_chart(kind, what, [(name, terms[what]) for name, terms in described])
        for kind, what in (("document", "documents"), ("query", "queries"))
    ]


def _histogram_chart(kind: str, what: str, histograms: Sequence[tuple[str, Mapping[str, Any]]]) -> Chart:
    """Draw the histograms of runs, each with its name and what `term_statistics` says of these texts."""
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
    title = f"Active terms per {kind}"
    return Chart(f"histogram-{what}", title, " ".join(texts), json_item(plot), columns, rows, legend, note)
