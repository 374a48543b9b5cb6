"""The page of a run: one HTML file without any request to a network, which opens from the disk."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import jinja2
from bokeh.resources import Resources

from lexforge.common.numbers import byte_size, duration, number
from lexforge.evaluation import SYSTEM_NAMES
from lexforge.report.diagnosis import advice_of, diagnose
from lexforge.report.record import METRICS_FILE
from lexforge.report.result_charts import duels, headline_chart, histogram_charts
from lexforge.report.run_files import RunFiles, headline_of
from lexforge.report.symptoms import SYMPTOMS
from lexforge.report.term_statistics import is_punctuation
from lexforge.report.training_charts import training_charts
from lexforge.report.verdict import measure_table, sentences, versus
from lexforge.runs import resume_command
from lexforge.runs.run_directory import flat_settings
from lexforge.storage.files import write_text

TEMPLATE = Path(__file__).parent / "template"
PAGE_FILE = "report.html"
SPEEDS = {
    "encode_documents_per_s": "documents encoded per second",
    "encode_queries_per_s": "queries encoded per second",
    "search_queries_per_s": "queries searched per second, all in one call",
    "search_p50_ms": "milliseconds per search, median",
    "search_p95_ms": "milliseconds per search, 95th percentile",
    "search_p99_ms": "milliseconds per search, 99th percentile",
}
FACTS = {"data": "Data", "model": "Model", "preset": "Preset", "loss.name": "Loss", "teacher": "Teacher"}


def write_page(run: str | Path, other: str | Path | None = None, *, output: str | Path | None = None) -> Path:
    """Write the page of a run, or of two runs side by side.

    The runs may have ended, go on or have crashed: the page shows what they have left so far, and says what
    is missing.

    Args:
        run: The run directory.
        other: The directory of a second run to compare with; None shows one run.
        output: The file to write; None is `report.html` in the run directory, or for two runs
            `report-with-<name of the other>.html` there.

    Returns:
        The file.

    Raises:
        FileNotFoundError: If a folder holds neither the settings nor the log of a run.
        ValueError: If a file of a run is damaged, or both directories are the same.
    """
    folders = [Path(run), *([] if other is None else [Path(other)])]
    places = [folder.resolve().parts for folder in folders]
    if len(set(places)) < len(places):
        raise ValueError(f"a run is compared with another one; {run} and {other} are the same folder")
    # Two runs of one name are told apart by their parents.
    parts = next(n for n in count(1) if len({place[-n:] for place in places}) == len(places))
    runs = [RunFiles(folder, "/".join(place[-parts:])) for folder, place in zip(folders, places, strict=True)]
    file = folders[0] / (PAGE_FILE if other is None else f"report-with-{folders[1].resolve().name}.html")
    file = file if output is None else Path(output)
    write_text(file, _render(runs))
    return file


def _render(runs: Sequence[RunFiles]) -> str:
    sampled = _sampled_queries(runs)
    headline, training = headline_chart(runs), training_charts(runs)
    compared, histograms = duels(runs, sampled), histogram_charts(runs)
    queries = list(dict.fromkeys((query, text) for own in sampled for query, (_, text) in own.items()))
    charts = [*([headline] if headline else []), *training, *(duel.chart for duel in compared), *histograms]
    page = _template().render(
        nonce=secrets.token_urlsafe(24),
        title=" and ".join(run.name for run in runs),
        written=datetime.now().strftime("%Y-%m-%d %H:%M"),
        runs=runs,
        speeds=SPEEDS,
        facts=[_facts(run) for run in runs],
        verdicts=[sentences(run) for run in runs],
        versus=versus(*runs) if len(runs) == 2 else None,
        table=measure_table(runs),
        headline=headline,
        training=training,
        duels=compared,
        histograms=histograms,
        queries=queries,
        findings=[diagnose(run) for run in runs],
        settings=_side_by_side([_texts(run.config) for run in runs]),
        environment=_side_by_side([_texts(run.environment) for run in runs]),
        commands=[_commands(run) for run in runs],
        data={
            "charts": {chart.id: chart.item for chart in charts},
            "queries": queries,
            "measure": headline_of(runs),
            "systems": SYSTEM_NAMES,
            "runs": [{"name": run.name, **_searches(run)} for run in runs],
        },
        script=_source("page.js"),
        style=_source("page.css"),
        bokeh="\n".join(Resources(mode="inline", components=["bokeh"]).js_raw),
    )
    return page.replace("\0", "\ufffd")  # as a browser reads it; tools take a page with a NUL for no text


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Bokeh reads a figure in the order in which it was written, so keys are not sorted.
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    environment.filters |= {"number": number, "bytes": byte_size, "duration": duration}
    environment.filters["empty_terms_remark"] = _empty_terms_remark
    environment.tests["punctuation"] = is_punctuation
    return environment.get_template("page.html.jinja")


def _source(name: str) -> str:
    return (TEMPLATE / name).read_text(encoding="utf-8")


def _sampled_queries(runs: Sequence[RunFiles]) -> list[dict[str, tuple[int, str]]]:
    """For each run, id of each query whose texts it has -> the place of the query on the page, and its text.

    Two runs share a query where its id and its text are the same: other data may use the same ids.
    """
    places: dict[tuple[str, str], int] = {}
    return [
        {
            query["id"]: (places.setdefault((query["id"], query["text"]), len(places)), query["text"])
            for query in (run.searches["queries"] if run.searches else [])
        }
        for run in runs
    ]


def _searches(run: RunFiles) -> dict[str, Any]:
    """The searches of a run by query, with the value of the headline measure in each system."""
    if run.searches is None:
        return {"searches": {}, "texts": {}}
    searches = {}
    for query in run.searches["queries"]:
        of_query = {
            system: scores.per_query.get(run.headline or "", {}).get(query["id"])
            for system, scores in run.scores.items()
        }
        values = {system: round(value, 4) for system, value in of_query.items() if value is not None}
        searches[query["id"]] = query | {"values": values}
    return {"searches": searches, "texts": run.searches["texts"]}


def _empty_terms_remark(strong: Sequence[tuple[str, float, bool]], run: RunFiles) -> str:
    """Say what it means that punctuation or stop words are among the strongest terms; empty if none is."""
    empty = [term for term, _, stop in strong if stop or is_punctuation(term)]
    if not empty:
        return ""
    be = "is punctuation or a stop word" if len(empty) == 1 else "are punctuation or stop words"
    return (
        f"{len(empty)} of these {len(strong)} {be}. Most texts have such terms, so they tell texts "
        "apart little and make each search longer. A few low in the list are usual. If they lead it, "
        f"{advice_of(SYMPTOMS['stop_words'], run)}."
    )


def _facts(run: RunFiles) -> list[tuple[str, str]]:
    """What a reader must know of a run at once."""
    settings = _texts(run.config)
    facts = [(label, settings[name]) for name, label in FACTS.items() if settings.get(name, "none") != "none"]
    sample = run.config.get("eval_documents")
    if sample is not None:
        facts.append(("Searched", f"the judged documents and a sample, {sample:,} in all"))
    if run.begins:
        began = datetime.fromtimestamp(run.begins[0]["time"]).strftime("%Y-%m-%d %H:%M")
        resumed = len(run.begins) - 1
        times = "once" if resumed == 1 else f"{resumed} times"
        facts.append(("Began", f"{began}, resumed {times}" if resumed else began))
        most, last = run.begins[-1]["max_steps"], max([line["step"] for line in run.log], default=0)
        facts.append(("Steps", f"{most:,}" if last == most else f"{last:,} of {most:,}"))  # early stopping
    if run.best_checkpoint:
        facts.append(("Best checkpoint", f"step {run.best_checkpoint['step']:,}"))
    return facts


def _commands(run: RunFiles) -> list[tuple[str, str]]:
    """The commands that go on from the run: what each is for, and the command."""
    commands = []
    folder = shlex.quote(str(run.folder))
    if METRICS_FILE in run.missing and run.environment:
        commands.append(
            ("Resume the run from its last checkpoint", resume_command(run.folder / "checkpoint"))
        )
    commands.append(("Write this page again", f"lexforge report {folder}"))
    if (run.folder / "model").is_dir():
        model = shlex.quote(str(run.folder / "model"))
        if run.scores:  # a retrieval run, whose data the scripts read
            data = shlex.quote(str(run.config.get("data", "DATA")))
            options = _source_flags(run.config.get("source") or {})
            search = [
                f"lexforge index --documents {data} --model {model} --output INDEX{options}",
                'lexforge search INDEX "your query"',
            ]
            evaluate = f"lexforge evaluate --model {model} --data {data} --split test{options}"
            again = "Measure the model again"
            if run.config.get("eval_documents") is not None:
                again = "Measure the model over all documents, which finds less"
            commands += [("Search with the model", "\n".join(search)), (again, evaluate)]
        modules = run.folder / "model" / "modules.json"
        is_bge_m3 = modules.is_file() and "TokenWeights" in modules.read_text(encoding="utf-8")
        if run.terms is not None and not is_bge_m3:  # whose head no runtime has
            export = f"lexforge export model --model {model} --target onnx --output OUT"
            commands.append(("Export the model to another runtime", export))
    return commands


def _source_flags(source: dict[str, Any]) -> str:
    """The options of a run's data that are not the defaults, as flags with a space before each."""
    # Weights belong to training, and the commands refuse them. Everything else is None by default but one.
    left_out = {"weight_column": source.get("weight_column"), "bad_rows": "fail"}
    given = {name: value for name, value in source.items() if value not in (None, left_out.get(name))}
    return "".join(f" --{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in given.items())


def _texts(settings: dict[str, Any]) -> dict[str, str]:
    """Nested settings as one mapping from names such as `loss.temperature` to text."""
    texts = {}
    for name, value in flat_settings(settings).items():
        if name.rpartition(".")[2] == "command" and isinstance(value, list):
            texts[name] = shlex.join(value)
        else:
            texts[name] = "none" if value is None else str(value)
    return texts


def _side_by_side(settings: Sequence[dict[str, str]]) -> list[tuple[str, list[str], bool]]:
    """Name, values of all runs, and whether they differ; those that differ stand first."""
    names = list(dict.fromkeys(name for one in settings for name in one))
    rows = [(name, [one.get(name, "") for one in settings]) for name in names]
    marked = [(name, values, len(set(values)) > 1) for name, values in rows]
    return sorted(marked, key=lambda row: not row[2])
