"""Quality of systems on several collections: systems x sets x seeds, and a table with significance.

    python scripts/bench/bench_presets.py run --data ../shared/data --model ../shared/models/splade-tiny \
        --runs runs/presets --systems plain lexforge --sets scifact nfcorpus-lc --seeds 1 2 3
    python scripts/bench/bench_presets.py run ... --split dev --systems plain --flags "--learning-rate 3e-4"
    python scripts/bench/bench_presets.py outside --data ../shared/data --runs runs/presets --seeds 1
    python scripts/bench/bench_presets.py table --data ../shared/data --against plain

`run` starts the recipe (or the stock trainer of sentence-transformers) once per system, set and seed, each on
one thread, two side by side, and appends one row per run to results/presets.csv, with the recipe's command,
and the scores of each query to results/presets_scores.jsonl.gz. A run whose folder is complete is not
repeated, so an interrupted call goes on where it stopped. `start` is the model before training, and `dense`
the dense encoder that `--model` names, trained by InfoNCE (`recipes/infonce_retrieval.py`). `--flags`
go to each run, and into its row: so a rival is tuned as any user would. With `--split dev` the queries of dev
are searched in place of those of test: so settings are chosen. `outside` measures the models that were
trained on English sets on collections that none of them has seen, and appends one row per model and
collection to results/presets_outside.csv.

`table` prints, of the newest run of each seed, mean and standard deviation over the seeds, and the difference
from the system `--against` with its 95 % interval and p: a paired t-test over the queries, each averaged over
the seeds; over articles where queries share one; with the correction of Holm over the sets. Other settings
of a system are another system: `--flags` tells them apart, as `plain --learning-rate 3e-4`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import shlex
import shutil
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import RESULTS, append_rows, run_command

if TYPE_CHECKING:
    from lexforge.evaluation import RunScores

Key = tuple[str, str, str]  # set, model, system with its flags

OUTSIDE = ("cranfield", "cacm", "npl", "msmarco-dl19-sub")


@dataclass(frozen=True)
class Collection:
    """What every system shares on one collection: steps, batch and length are equal for all of them."""

    flags: tuple[str, ...]
    steps: int
    batch: int = 32
    outside: bool = False
    language: str = "en"
    by_article: bool = False  # several queries ask about one article, whose title their documents share

    @property
    def scratch(self) -> bool:
        """Whether the encoder is built from the corpus instead of loaded."""
        return LEXICAL in self.flags


LEXICAL = "lexical"
IDENTITY = ("system", "flags", "model", "set", "split", "seed")  # of a run
FROM_SCRATCH = ("--model", LEXICAL)
SETS = {
    "medquad": Collection((), 200, outside=True),
    "scifact": Collection((), 200, outside=True),
    "nfcorpus-lc": Collection((), 200, outside=True),
    "newwiki": Collection((), 200, by_article=True),
    "korquad": Collection((*FROM_SCRATCH, "--max-seq-length", "512"), 100, language="ko", by_article=True),
    "docstrings": Collection((*FROM_SCRATCH, "--max-seq-length", "384"), 300, batch=64),
}
# What a run begins with, before `--flags`. `lexforge` is the default preset, which the kind of model chooses.
SYSTEMS: dict[str, tuple[str, ...]] = {
    "start": (),
    "stock": (),
    "plain": ("--preset", "plain"),
    "lexforge": (),
    "dense": (),
}
PLAIN_RATES = {"scratch": "1e-3", "pretrained": "1e-4"}
SCORES = RESULTS / "presets_scores.jsonl.gz"
MEASURES = ("nDCG@10", "R@100")  # whose values of each query are kept


@dataclass(frozen=True)
class Job:
    """One run: a system on a collection with a seed, and the folder that holds what it leaves."""

    system: str
    collection: str
    seed: int
    folder: Path
    split: str = "test"  # whose queries are searched
    flags: tuple[str, ...] = ()  # beside those of the system

    @property
    def done(self) -> bool:
        """Whether the run has ended, so that it need not be repeated."""
        return (self.folder / "row.json").is_file()


def command(job: Job, data: Path, model: Path) -> list[str]:
    """The command line of a job: of the recipe, or of the stock trainer."""
    collection = SETS[job.collection]
    source = job.collection if job.collection == "docstrings" else str(data / job.collection)
    shared = ["--data", source, *(collection.flags or ("--model", str(model)))]
    shared += ["--steps", str(collection.steps), "--batch-size", str(collection.batch)]
    shared += ["--seed", str(job.seed), "--output-dir", str(job.folder / "run")]
    if "--max-seq-length" not in collection.flags:
        shared += ["--max-seq-length", "128"]  # equal for all systems, whatever the model was saved with
    rate = ["--learning-rate", PLAIN_RATES["scratch" if collection.scratch else "pretrained"]]
    if job.system in ("start", "stock"):
        shared += rate if job.system == "stock" else []
        line = [sys.executable, "scripts/bench/stock_splade.py", "--system", job.system, *shared]
        return with_flags(line, job.flags)
    recipe, flags = "recipes/infonce_retrieval.py", []
    if job.system != "dense":
        recipe = "recipes/splade_v26.py"
        flags = [*SYSTEMS[job.system], "--language", collection.language]  # of the stop words
    if job.system == "plain":
        flags += rate
    line = [sys.executable, recipe, *flags, "--no-initial-evaluation", *shared]
    return with_flags(line, job.flags)


def with_flags(line: list[str], flags: Sequence[str]) -> list[str]:
    """Add flags to a command, in the place of those of the same name, which have one value each."""
    for name in [flag for flag in flags if flag.startswith("--")]:
        if name in line:
            place = line.index(name)
            line = line[:place] + line[place + 2 :]
    return [*line, *flags]


def run_job(job: Job, data: Path, model: Path) -> dict[str, Any]:
    """Run a job on one thread, measure what it left, and return its row, which its folder holds too.

    What an interrupted run left in the folder is deleted first.
    """
    shutil.rmtree(job.folder, ignore_errors=True)
    job.folder.mkdir(parents=True)
    line = command(job, data, model)
    seconds, cpu_seconds = run_command(line, job.folder / "log.txt")
    metrics = json.loads((job.folder / "run" / "metrics.json").read_text(encoding="utf-8"))
    trained = metrics["trained"]
    row: dict[str, Any] = {
        "system": job.system,
        "flags": shlex.join(job.flags),
        "model": LEXICAL if SETS[job.collection].scratch else model.name,
        "set": job.collection,
        "split": job.split,
        "seed": job.seed,
        **{name: round(trained[name], 5) for name in ("nDCG@10", "RR@10", "R@100")},
        **sparsity(trained),
        "bm25_nDCG@10": round(metrics["bm25"]["nDCG@10"], 5),
        "steps": int(line[line.index("--steps") + 1]),
        "seconds": round(seconds),
        "cpu_seconds": round(cpu_seconds),
        "command": _shown(line, job, data, model),
    }
    (job.folder / "row.json").write_text(json.dumps(row), encoding="utf-8")
    return row


def sparsity(measured: Mapping[str, float]) -> dict[str, float | str]:
    """The active terms and FLOPS of a sparse model; a dense one has none."""
    if "flops" not in measured:
        return dict.fromkeys(("query_terms", "document_terms", "flops"), "")
    return {
        "query_terms": round(measured["query_active_dims"], 1),
        "document_terms": round(measured["document_active_dims"], 1),
        "flops": round(measured["flops"], 3),
    }


def keep_scores(row: Mapping[str, Any], run: Path, source: str) -> None:
    """Append the scores of each query of a run to `SCORES`, in the order of the judgements."""
    from lexforge.data import load_retrieval_data
    from lexforge.evaluation import read_run, score_run

    scores = score_run(read_run(run), load_retrieval_data(source).split("test"), MEASURES)
    kept = {name: row[name] for name in IDENTITY}
    kept |= {
        name: [round(value, 4) for value in values.values()] for name, values in scores.per_query.items()
    }
    with gzip.open(SCORES, "at", encoding="utf-8") as stream:
        stream.write(json.dumps(kept) + "\n")


def search_dev(collection: Path, folder: Path) -> None:
    """Make a collection whose split test is the dev of another one, of links to its files."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    files = {"corpus.jsonl": "corpus.jsonl", "queries.jsonl": "queries.jsonl"}
    files |= {"qrels/train.tsv": "qrels/train.tsv", "qrels/test.tsv": "qrels/dev.tsv"}
    for link, file in files.items():
        (folder / link).unlink(missing_ok=True)
        (folder / link).symlink_to(collection / file)


def _shown(line: list[str], job: Job, data: Path, model: Path) -> str:
    """The command as anyone can repeat it: folders by the names of the options, not those of a machine."""
    shown = shlex.join(["python", *line[1:]])
    folders = {str(data): "DATA", str(model): "MODEL", str(job.folder / "run"): "RUN"}
    for folder, name in folders.items():
        shown = shown.replace(folder, name)
    return shown


def measure_outside(job: Job, data: Path) -> list[dict[str, Any]]:
    """Measure a trained model on the collections that it has never seen; one row per collection."""
    rows = []
    for name in OUTSIDE:
        file = job.folder / f"outside-{name}.json"
        line = [sys.executable, "-m", "lexforge", "evaluate", "--model", str(job.folder / "run" / "model")]
        line += ["--data", str(data / name), "--split", "test", "--json", str(file)]
        run_command(line, file.with_suffix(".txt"))
        found = json.loads(file.read_text(encoding="utf-8"))
        measured = found["metrics"] | found["sparsity"]
        row: dict[str, Any] = {"system": job.system, "flags": shlex.join(job.flags)}
        row |= {"trained_on": job.collection, "seed": job.seed}
        row |= {"measured_on": name, **{key: round(measured[key], 5) for key in ("nDCG@10", "R@100")}}
        row |= sparsity(measured)
        rows.append(row)
    (job.folder / "outside.json").write_text(json.dumps(rows), encoding="utf-8")
    return rows


def newest(lines: Iterable[Mapping[str, Any]]) -> dict[Key, dict[int, Mapping[str, Any]]]:
    """(set, model, system with its flags) -> seed -> the last line of that run."""
    found: dict[Key, dict[int, Mapping[str, Any]]] = {}
    for line in lines:
        name = " ".join(filter(None, (line["system"], line["flags"])))
        found.setdefault((line["set"], line["model"], name), {})[int(line["seed"])] = line
    return found


def mean_scores(kept: Iterable[Mapping[str, Any]], queries: Sequence[str]) -> RunScores:
    """The scores of each query, averaged over the seeds."""
    from lexforge.evaluation import RunScores

    lines = list(kept)
    per_query: dict[str, dict[str, float]] = {}
    for name in MEASURES:
        of_queries = zip(*(line[name] for line in lines), strict=True)
        per_query[name] = dict(zip(queries, map(statistics.mean, of_queries), strict=True))
    return RunScores(
        {name: statistics.mean(values.values()) for name, values in per_query.items()}, per_query
    )


def articles(folder: Path, qrels: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """Query -> the title of a document that answers it."""
    with (folder / "corpus.jsonl").open(encoding="utf-8") as stream:
        titles = {document["_id"]: document["title"] for document in map(json.loads, stream)}
    return {query: titles[max(grades, key=lambda key: grades[key])] for query, grades in qrels.items()}


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of several tests for their number.

    Source: Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


def table(data: Path, split: str, against: str) -> str:
    """A line per set, model and system, with the difference from another system, as a Markdown table."""
    from lexforge.data import load_retrieval_data
    from lexforge.evaluation import compare_runs

    with (RESULTS / "presets.csv").open(encoding="utf-8", newline="") as stream:
        rows = newest(line for line in csv.DictReader(stream) if line["split"] == split)
    with gzip.open(SCORES, "rt", encoding="utf-8") as stream:
        kept = newest(line for line in map(json.loads, stream) if line["split"] == split)
    compared = {}
    for key in kept:
        name, model, system = key
        other = (name, model, against)
        if system == against or other not in kept:
            continue
        qrels = load_retrieval_data(name if name == "docstrings" else str(data / name)).split(split)
        groups = articles(data / name, qrels) if SETS[name].by_article else None
        first, second = (mean_scores(kept[one].values(), list(qrels)) for one in (other, key))
        compared[key] = compare_runs(first, second, groups=groups)["nDCG@10"]
    corrected: dict[Key, float] = {}
    for family in {key[1:] for key in compared}:
        keys = [key for key in compared if key[1:] == family]
        corrected |= zip(keys, holm([compared[key].p_value for key in keys]), strict=True)
    lines = [
        "| set | model | system | seeds | nDCG@10 | difference | p (Holm) | R@100 | query terms | "
        "document terms | FLOPS | steps | CPU-seconds |",
        "|---" * 13 + "|",
    ]
    for key in sorted(kept, key=lambda key: (list(SETS).index(key[0]), key[1:])):
        measured = [rows[key][seed] for seed in kept[key]]
        cells = [key[0], key[1], f"`{key[2]}`", str(len(measured)), _spread(measured, "nDCG@10"), "", ""]
        if key in compared:
            low, high = compared[key].interval
            cells[5] = f"{compared[key].difference:+.4f} ({low:+.4f} to {high:+.4f})"
            cells[6] = f"{corrected[key]:.2g}"
        cells += [_spread(measured, "R@100")]
        cells += [_mean(measured, name) for name in ("query_terms", "document_terms")]
        cells += [_mean(measured, "flops", 2), _mean(measured, "steps")]
        lines.append("| " + " | ".join([*cells, _mean(measured, "cpu_seconds")]) + " |")
    return "\n".join(lines)


def _mean(rows: list[Mapping[str, Any]], key: str, digits: int = 0) -> str:
    values = [float(row[key]) for row in rows if row[key] != ""]  # rows of earlier versions lack some
    return f"{statistics.mean(values):.{digits}f}" if values else "–"


def _spread(rows: list[Mapping[str, Any]], key: str) -> str:
    values = [float(row[key]) for row in rows]
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def _in_a_path(flag: str) -> str:
    return "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in flag.lstrip("-"))


def main() -> None:
    """Run what is asked for and not yet done, or print the table of what is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("run", "outside", "table"))
    parser.add_argument("--data", type=Path, required=True, help="folder of collections in BEIR layout")
    parser.add_argument("--model", type=Path, help="pretrained SPLADE for the sets that fine-tune one")
    parser.add_argument("--runs", type=Path, help="folder of the runs")
    parser.add_argument("--flags", default="", help="further flags of each run, as one word")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=["plain", "lexforge"])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--split", choices=("dev", "test"), default="test", help="whose queries are searched")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--side-by-side", type=int, default=2, help="runs at once, each on one thread")
    parser.add_argument("--against", default="plain", help="the system that others are compared with")
    arguments = parser.parse_args()
    data = arguments.data.resolve()
    if arguments.action == "table":
        print(table(data, arguments.split, arguments.against))
        return
    if arguments.runs is None:
        parser.error("--runs is needed")
    runs, model = arguments.runs.resolve(), (arguments.model or Path()).resolve()
    flags = tuple(shlex.split(arguments.flags))
    if arguments.split == "dev":
        if "docstrings" in arguments.sets:
            parser.error("--split dev takes sets that are folders: name them by --sets, without docstrings")
        for name in arguments.sets:
            search_dev(data / name, runs / "queries-of-dev" / name)
        data = runs / "queries-of-dev"
    kind = "-".join((arguments.split, *map(_in_a_path, flags)))
    jobs = [
        Job(system, name, seed, runs / kind / name / f"{system}-{seed}", arguments.split, flags)
        for seed in arguments.seeds
        for name in arguments.sets
        for system in arguments.systems
    ]
    with ThreadPoolExecutor(arguments.side_by_side) as pool:
        if arguments.action == "run":
            if arguments.model is None and any(not SETS[name].scratch for name in arguments.sets):
                parser.error("--model is needed for the sets that fine-tune a pretrained model")
            waiting = [job for job in jobs if not job.done]
            started = {pool.submit(run_job, job, data, model): job for job in waiting}
            failed = []
            for ended in as_completed(started):
                if ended.exception() is None:
                    job = started[ended]
                    source = job.collection if job.collection == "docstrings" else str(data / job.collection)
                    append_rows("presets", [ended.result()])
                    keep_scores(ended.result(), job.folder / "run" / "run.trec", source)
                else:
                    failed.append(str(ended.exception()))
            if failed:
                raise SystemExit("\n".join(failed))
        else:
            waiting = [job for job in jobs if job.done and SETS[job.collection].outside]
            waiting = [job for job in waiting if not (job.folder / "outside.json").is_file()]
            measured = [pool.submit(measure_outside, job, arguments.data.resolve()) for job in waiting]
            for found in as_completed(measured):
                append_rows("presets_outside", found.result())


if __name__ == "__main__":
    main()
