"""Whether a run has worked, in sentences and in a table, for the page and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from statistics import fmean, stdev

from lexforge.common.numbers import byte_size, duration, number
from lexforge.evaluation import (
    MEASURE_NAMES,
    SYSTEM_NAMES,
    Comparison,
    RunScores,
    compare_runs,
)
from lexforge.report.record import ADAPTATION_FILE, TRAINED
from lexforge.report.run_files import RunFiles, headline_of, other_measurement

CHANCE = 0.05  # a difference with a larger p-value may well be chance


def run_verdict(folder: str | Path) -> str:
    """Say whether a run beat BM25 and its start, in the words with which its page begins.

    Args:
        folder: The run directory.

    Returns:
        A few sentences in one line.

    Raises:
        FileNotFoundError: If the folder holds neither the settings nor the log of a run.
        ValueError: If a file of the run is damaged.
    """
    return " ".join(sentences(RunFiles(folder)))


def sentences(run: RunFiles) -> list[str]:
    """Say in a few sentences whether a run has worked, or how far it has come."""
    if TRAINED not in run.metrics:
        return [_progress(run)]
    measure = run.headline
    said = []
    trained, before, bm25 = (
        run.metrics.get(system, {}).get(measure) if measure else None
        for system in (TRAINED, "initial", "bm25")
    )
    if measure is not None and trained is not None:
        if before is None:
            said.append(f"After training {measure} is {number(trained)}.")
        elif number(before) == number(trained):
            said.append(f"Training did not change {measure}: it is {number(trained)}.")
        else:
            verb = "raised" if trained > before else "lowered" if trained < before else "moved"
            change = f"from {number(before)} to {number(trained)}"
            said.append(f"Training {verb} {measure} {change}{_surely(run, 'initial', measure)}.")
        if bm25 is not None and not math.isnan(trained):
            where = "above" if trained > bm25 else "below" if trained < bm25 else "from"
            said.append(
                f"That is {number(abs(trained - bm25))} {where} BM25, which reaches {number(bm25)}"
                f"{_surely(run, 'bm25', measure)}."
            )
    sizes = run.metrics[TRAINED]
    if "document_active_dims" in sizes:
        said.append(
            f"A document has {sizes['document_active_dims']:,.1f} active terms and a query "
            f"{sizes['query_active_dims']:,.1f}."
        )
        wanted = run.wanted_terms.get("document")
        if wanted is not None and trained is not None and bm25 is not None and trained < bm25:
            said.append(
                f"{wanted:g} per document were wanted; where queries ask for details, a search may need more "
                "(--document-terms)."
            )
    seconds = run.timing.get("stage_seconds", {})
    if seconds:
        training = f", of which training took {duration(seconds['train'])}" if "train" in seconds else ""
        run_took = "Since it was resumed, the run took" if run.timing.get("resumed") else "The run took"
        said.append(f"{run_took} {duration(sum(seconds.values()))}{training}.")
    return said


def versus(first: RunFiles, second: RunFiles) -> str:
    """Compare the trained models of two runs in a sentence."""
    if not (first.has_ended and second.has_ended):
        return "The two runs cannot be compared before both have ended."
    if TRAINED not in first.scores or TRAINED not in second.scores:
        return "The two runs are not compared, because both would have to keep their values of each query."
    if differences := other_measurement(first, second):
        return f"The two runs are not compared, because they differ in {' and '.join(differences)}."
    measure = first.headline or ""
    if measure not in second.scores[TRAINED].per_query:
        return f"The two runs are not compared, because {second.name} has no {measure}."
    result = _compared(first.scores[TRAINED], second.scores[TRAINED], measure)
    if result is None:
        return "The two runs were measured on different queries, or on one alone, so they are not compared."
    if result.difference == 0:
        return f"Both trained models reach {measure} {number(result.first)}{_chance(result.p_value)}."
    better, worse = (second, first) if result.difference > 0 else (first, second)
    high, low = max(result.first, result.second), min(result.first, result.second)
    return (
        f"{better.name} reaches {measure} {number(high)}, which is {number(high - low)} above {worse.name} "
        f"with {number(low)}{_chance(result.p_value)}."
    )


def measure_table(runs: Sequence[RunFiles]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Show every measure of every system, with the confidence interval of the headline measure.

    Returns:
        The heads of the columns behind the one of the systems; and name and cells of each system.
    """
    keys = list(dict.fromkeys(key for run in runs for values in run.metrics.values() for key in values))
    headline = headline_of(runs)
    keys.sort(key=lambda key: (key != headline, key in MEASURE_NAMES))
    rows = []
    for run in runs:
        for system, values in run.metrics.items():
            cells = []
            for key in keys:
                cell = _cell(key, values[key]) if key in values else ""
                if key == headline and (bounds := interval(run, system, key)):
                    cell += f" [{bounds[0]:.3f}, {bounds[1]:.3f}]"
                cells.append(cell)
            rows.append((system_name(run, system, runs), cells))
    columns = [MEASURE_NAMES.get(key, key) for key in keys]
    if headline in keys and any(run.scores for run in runs):
        columns[keys.index(headline)] += " [95 %]"
    return columns, rows


def interval(run: RunFiles, system: str, measure: str) -> tuple[float, float] | None:
    """The 95 % confidence interval of a mean over queries, by Student's t, in the range of a measure.

    None where the run keeps no values of each query.
    """
    if system not in run.scores or measure not in run.scores[system].per_query:
        return None
    from scipy import stats  # here, because it takes half a second to load

    values = list(run.scores[system].per_query[measure].values())
    mean, reach = fmean(values), 1.0  # one query alone tells nothing
    if len(values) > 1:
        reach = float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return max(0.0, mean - reach), min(1.0, mean + reach)


def system_name(run: RunFiles, system: str, runs: Sequence[RunFiles]) -> str:
    """What the page calls a system of a run."""
    name = SYSTEM_NAMES.get(system, system)
    return f"{run.name}, {name}" if len(runs) > 1 else name


def _progress(run: RunFiles) -> str:
    """How far a run without results of its trained model has come."""
    if (run.folder / ADAPTATION_FILE).is_file():
        return f"The adaptation has ended; {ADAPTATION_FILE} holds what it measured."
    if not run.begins:
        return "The run has not begun to train."
    most = run.begins[-1]["max_steps"]
    last = max([*run.log, *run.begins], key=itemgetter("time"))
    when = datetime.fromtimestamp(last["time"]).strftime("%Y-%m-%d %H:%M:%S")
    return (
        f"The run has not ended: the last line of its log is of step {last['step']:,} of {most:,}, at "
        f"{when}. If no process trains any more, it can be resumed."
    )


def _surely(run: RunFiles, system: str, measure: str) -> str:
    """The significance of the difference between a system and the trained one, as the end of a sentence."""
    if system not in run.scores or TRAINED not in run.scores:
        return ""
    result = _compared(run.scores[system], run.scores[TRAINED], measure)
    return "" if result is None else _chance(result.p_value)


def _compared(first: RunScores, second: RunScores, measure: str) -> Comparison | None:
    """Compare two systems by a measure; None if one lacks it, or their queries differ or are too few."""
    values = [scores.per_query.get(measure, {}) for scores in (first, second)]
    if values[0].keys() != values[1].keys() or len(values[0]) < 2:
        return None
    one, other = (
        RunScores({measure: scores.mean[measure]}, {measure: scores.per_query[measure]})
        for scores in (first, second)
    )
    return compare_runs(one, other)[measure]


def _chance(p_value: float) -> str:
    shown = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
    return f" ({shown})" if p_value < CHANCE else f" ({shown}: the difference may be chance)"


def _cell(key: str, value: float) -> str:
    if key == "index_bytes":
        return byte_size(value)
    if key.endswith("_expansion"):
        return f"{100 * value:.1f} %"
    if key.endswith("_active_dims"):
        return f"{value:,.1f}"
    return number(value)
