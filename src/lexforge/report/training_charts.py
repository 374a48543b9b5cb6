"""The charts of training, lines over its steps: the loss and its parts, active terms, measures on dev."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby
from operator import itemgetter
from typing import Any

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
from lexforge.report.charts import COLOURS, HEIGHT, Chart, empty_figure, value_range
from lexforge.report.run_files import RunFiles

# Values of the log that dense and sparse runs share -> the heading of their chart.
OTHER_CURVES = {
    "grad_norm": "Norm of the gradient",
    "candidates/left_out": "Share of the candidates that are left out",
}
WITH_QUEUE = ("nws", "moco")  # the losses of the recipes whose denominator grows with their queue
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


def training_charts(runs: Sequence[RunFiles]) -> list[Chart]:
    """Draw what the logs of runs hold.

    Args:
        runs: One run, or two to compare. What has one line per run is drawn into one chart, and the parts of
            the loss into one chart per run.

    Returns:
        The charts, in the order of the page; a chart without any value is left out.
    """
    phases = _phases(runs[0]) if len(runs) == 1 else []
    note = ""
    if len(phases) > 1:
        ends = ", ".join(f"{number} to step {end:,}" for number, (_, end) in enumerate(phases, start=1))
        note = f"The shades are the phases of the curriculum: {ends}."
    notes = dict.fromkeys([note, *(loss_note(run.config) for run in runs)])
    note = " ".join(filter(None, notes))
    whole = _overlaid("loss", "Loss", runs, ["loss"], phases, note=note)
    parts: list[Chart] = []
    names = dict.fromkeys(name for run in runs for name in _lines_with_parts(run)[1])
    colours = dict(zip(names, cycle(COLOURS), strict=False))  # a part has one colour in both runs
    for shares in (False, True):
        for place, run in enumerate(runs):  # those of two runs stand side by side
            suffix, of = (f"-{place}", f" of {run.name}") if len(runs) > 1 else ("", "")
            parts += _parts(run, suffix, of, phases, colours, shares=shares)
    others: list[Chart | None] = []
    for kind in ("document", "query"):
        keys = [f"terms/{kind}", f"terms/{kind}_wanted"]
        title = f"Active terms per {kind}"
        others.append(_overlaid(f"terms-{kind}", title, runs, keys, phases, from_zero=True))
    others.append(_overlaid("rate", "Learning rate", runs, ["learning_rate"], phases, from_zero=True))
    for key, title in OTHER_CURVES.items():
        if not any(line.get(key) for run in runs for line in run.log):  # nothing but zeros
            continue
        others.append(_overlaid(key.replace("/", "-"), title, runs, [key], phases, from_zero=True))
    if dev_key := next((run.dev_key for run in runs if run.dev_key), None):
        title = f"{dev_key.removeprefix('eval_dev_')} on dev"
        others.append(_overlaid("dev", title, runs, [dev_key], phases, from_zero=True))
    charts = [whole, *parts, *others] if len(runs) == 1 else [whole, *others, *parts]
    return [chart for chart in charts if chart is not None]


def loss_note(config: Mapping[str, Any]) -> str:
    """Say why the loss of a run may rise while training works.

    Args:
        config: The settings of the run, as `config.json` holds them.

    Returns:
        One sentence for a loss with a queue of past texts, and nothing for others.
    """
    loss = config.get("loss")
    if not isinstance(loss, Mapping) or loss.get("name") not in WITH_QUEUE:
        return ""
    size = loss.get("queue_size")
    if not isinstance(size, int) or not size:
        return ""
    return (
        f"The loss may rise until the queue of {size:,} texts is full, because each of them adds a term to "
        "its denominator: compare its values only after that, and the measures on dev (--eval-steps)."
    )


def _overlaid(
    id: str,
    title: str,
    runs: Sequence[RunFiles],
    keys: Sequence[str],
    phases: Sequence[tuple[float, float]],
    *,
    from_zero: bool = False,
    note: str = "",
) -> Chart | None:
    """A chart with the lines of all runs: of a value, and dotted of the wanted value, `..._wanted`."""
    series = []
    for place, run in enumerate(runs):
        for key in keys:
            points = [(line["step"], line[key]) for line in run.log if _is_number(line.get(key))]
            if points:
                wanted = key.endswith("_wanted")
                words = [run.name] * (len(runs) > 1) + ["wanted"] * wanted
                name = " ".join(words) or title
                series.append(
                    Series(
                        name,
                        [step for step, _ in points],
                        [value for _, value in points],
                        COLOURS[place],
                        "dotted" if wanted else DASHES[place],
                    )
                )
    if not series:
        return None
    return _line_chart(id, title, series, phases, from_zero=from_zero, note=note)


def _parts(
    run: RunFiles,
    suffix: str,
    of: str,
    phases: Sequence[tuple[float, float]],
    colours: Mapping[str, str],
    *,
    shares: bool,
) -> list[Chart]:
    """The parts of the loss as they were added, or the share of each; no chart for a loss without parts."""
    lines, parts = _lines_with_parts(run)
    if len(parts) < 1 + shares:  # one part alone is all of the loss
        return []
    key, factor = ("share", 100) if shares else ("loss", 1)
    series = [
        Series(
            name.replace("_", " "),
            [line["step"] for line in lines],
            [factor * line.get(f"{key}/{name}", 0.0) for line in lines],
            colours[name],
        )
        for name in parts
    ]
    if shares:
        title = f"Share of each part{of}"
        note = (
            "The axis is logarithmic, so that small parts can be seen. A share below 0.0001 % is not drawn."
        )
    else:
        title = f"Parts of the loss{of}"
        note = "Each part with its weight; together they are the loss."
    id = f"{'shares' if shares else 'parts'}{suffix}"
    return [_line_chart(id, title, series, phases, percent=shares, note=note)]


def _lines_with_parts(run: RunFiles) -> tuple[list[dict[str, Any]], list[str]]:
    """The lines of the log that name parts of the loss, and the parts in force."""
    lines = [line for line in run.log if "loss" in line and any(key.startswith("share/") for key in line)]
    names = [key.removeprefix("share/") for key in lines[0] if key.startswith("share/")] if lines else []
    return lines, [name for name in names if any(line.get(f"loss/{name}") for line in lines)]


def _phases(run: RunFiles) -> list[tuple[float, float]]:
    """First and last step of each phase that the log names."""
    lines = [line for line in run.log if "loss" in line and "phase" in line]
    ends = [list(group)[-1]["step"] for _, group in groupby(lines, itemgetter("phase"))]
    return list(zip([0, *ends], ends, strict=False))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and value == value


def _line_chart(
    id: str,
    title: str,
    series: Sequence[Series],
    phases: Sequence[tuple[float, float]],
    *,
    from_zero: bool = False,
    percent: bool = False,
    note: str = "",
) -> Chart:
    """Draw lines over the steps of training, with every second phase of the curriculum shaded.

    The vertical axis begins at 0 if asked to (`value_range`). That of percentages is logarithmic: a value of
    0 has no place there, and leaves a gap in its line.
    """
    plot = empty_figure(HEIGHT, y_axis_type="log" if percent else "linear")
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
                "y": [_short(line.values[place], positive=percent) for place in kept],
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
    plot.y_range = _log_range(values) if percent else value_range(values, from_zero=from_zero)
    if percent or max(values) < 0.01:
        plot.yaxis.formatter = PrintfTickFormatter(format="%.2g")
    if percent:
        plot.yaxis.axis_label = "percent"
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
