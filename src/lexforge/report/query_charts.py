"""Which queries one system wins or loses against another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lexforge.common.numbers import number
from lexforge.evaluation import SYSTEM_NAMES, RunScores
from lexforge.report.charts import Chart
from lexforge.report.record import TRAINED
from lexforge.report.result_charts import scatter_chart
from lexforge.report.run_files import RunFiles, headline_of, other_measurement

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
    pairs = []
    for system in ("bm25", "initial"):
        against = "BM25" if system == "bm25" else "the model before training"
        comparison = f"after training than {'with BM25' if system == 'bm25' else 'before'}"
        for place, run in enumerate(runs):  # those of two runs stand side by side
            heading = f"{run.name} against {against}" if len(runs) > 1 else f"Against {against}"
            scores = run.scores.get(system), run.scores.get(TRAINED)
            names = SYSTEM_NAMES[system], SYSTEM_NAMES[TRAINED]
            pairs.append((f"{system}-{place}", heading, *scores, names, comparison, sampled[place]))
    if len(runs) == 2 and not other_measurement(*runs):
        one, other = runs
        scores = one.scores.get(TRAINED), other.scores.get(TRAINED)
        names, comparison = (one.name, other.name), f"in {other.name} than in {one.name}"
        known = sampled[1] | sampled[0]
        pairs.insert(0, ("runs", f"{other.name} against {one.name}", *scores, names, comparison, known))
    return [
        duel
        for id, title, first, second, names, comparison, known in pairs
        if first is not None
        and second is not None
        and (duel := _duel(f"duel-{id}", title, first, second, names, comparison, measure, known))
    ]


def _duel(
    id: str,
    title: str,
    first: RunScores,
    second: RunScores,
    names: tuple[str, str],
    comparison: str,
    measure: str,
    sampled: dict[str, tuple[int, str]],
) -> Duel | None:
    one, other = first.per_query.get(measure, {}), second.per_query.get(measure, {})
    queries = [(query, one[query], other[query]) for query in one if query in other]
    if not queries:
        return None
    places = {query: place for query, (place, _) in sampled.items()}
    chart = scatter_chart(id, title, queries, places, names, comparison, measure)
    known = [
        (after - before, *sampled[query], f"{number(before)} to {number(after)}")
        for query, before, after in queries
        if query in sampled
    ]
    won = sorted((row for row in known if row[0] > 0), key=lambda row: -row[0])[:LISTED]
    lost = sorted((row for row in known if row[0] < 0), key=lambda row: row[0])[:LISTED]
    return Duel(chart, [row[1:] for row in won], [row[1:] for row in lost])
