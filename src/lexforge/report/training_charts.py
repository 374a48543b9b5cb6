"""The charts of training: the loss and its parts, active terms, learning rate, measures on dev."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, groupby
from operator import itemgetter
from typing import Any

from lexforge.report.charts import COLOURS, Chart
from lexforge.report.run_files import RunFiles
from lexforge.report.step_charts import DASHES, Series, line_chart

Line = dict[str, Any]
# Values of the log that dense and sparse runs share -> the heading of their chart.
OTHER_CURVES = {
    "grad_norm": "Norm of the gradient",
    "candidates/left_out": "Share of the candidates that are left out",
}
WITH_QUEUE = ("nws", "moco")  # the losses of the recipes whose denominator grows with their queue


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
    for draw in (_parts, _shares):  # those of two runs stand side by side
        for place, run in enumerate(runs):
            of = f" of {run.name}" if len(runs) > 1 else ""
            parts += draw(run, f"-{place}" if of else "", of, phases, colours)
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


def log_rows(run: RunFiles) -> list[Line]:
    """Return the lines of a log that describe a step of training."""
    return [line for line in run.log if "loss" in line]


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
    return line_chart(id, title, series, phases=phases, from_zero=from_zero, note=note)


def _parts(
    run: RunFiles, suffix: str, of: str, phases: Sequence[tuple[float, float]], colours: Mapping[str, str]
) -> list[Chart]:
    """The parts of the loss as they were added; no chart for a loss without parts."""
    lines, parts = _lines_with_parts(run)
    if not parts:
        return []
    steps = [line["step"] for line in lines]
    series = [
        Series(_words(name), steps, [line.get(f"loss/{name}", 0.0) for line in lines], colours[name])
        for name in parts
    ]
    note = "Each part with its weight; together they are the loss."
    return [line_chart(f"parts{suffix}", f"Parts of the loss{of}", series, phases=phases, note=note)]


def _shares(
    run: RunFiles, suffix: str, of: str, phases: Sequence[tuple[float, float]], colours: Mapping[str, str]
) -> list[Chart]:
    """The share of each part of the loss, over a logarithmic axis that shows small parts too."""
    lines, parts = _lines_with_parts(run)
    if len(parts) < 2:  # one part alone is all of the loss
        return []
    steps = [line["step"] for line in lines]
    series = [
        Series(_words(name), steps, [100 * line.get(f"share/{name}", 0.0) for line in lines], colours[name])
        for name in parts
    ]
    title = f"Share of each part{of}"
    note = "The axis is logarithmic, so that small parts can be seen. A share below 0.0001 % is not drawn."
    return [
        line_chart(
            f"shares{suffix}", title, series, phases=phases, logarithmic=True, unit="percent", note=note
        )
    ]


def _lines_with_parts(run: RunFiles) -> tuple[list[Line], list[str]]:
    """The lines of the log that name parts of the loss, and the parts in force."""
    lines = [line for line in log_rows(run) if any(key.startswith("share/") for key in line)]
    names = [key.removeprefix("share/") for key in lines[0] if key.startswith("share/")] if lines else []
    return lines, [name for name in names if any(line.get(f"loss/{name}") for line in lines)]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _phases(run: RunFiles) -> list[tuple[float, float]]:
    """First and last step of each phase that the log names."""
    lines = [line for line in log_rows(run) if "phase" in line]
    ends = [list(group)[-1]["step"] for _, group in groupby(lines, itemgetter("phase"))]
    return list(zip([0, *ends], ends, strict=False))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and value == value
