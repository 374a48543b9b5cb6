"""Quality of the presets on several collections: systems x sets x seeds, and a table with significance.

    python scripts/bench/bench_presets.py run --data ../shared/data --model ../shared/models/splade-tiny \
        --runs runs/presets --systems plain lexforge --sets scifact nfcorpus-lc --seeds 1 2 3
    python scripts/bench/bench_presets.py outside --data ../shared/data --runs runs/presets --seeds 1
    python scripts/bench/bench_presets.py table --data ../shared/data --runs runs/presets

`run` starts the recipe (or the stock trainer of sentence-transformers) once per system, set and seed, each on
one thread, two side by side, and appends one row per run to results/presets.csv, with the recipe's command.
A run whose folder is complete is not repeated, so an interrupted call goes on where it stopped. `start` is
the model before training. With `--split dev` the queries of dev are searched in place of those of test: so
settings are chosen. `outside` measures the models that were trained on English sets on collections that none
of them has seen, and appends one row per model and collection to results/presets_outside.csv.
`table` prints mean and standard deviation over the seeds, and the p-value of a paired t-test over the
queries, each query averaged over the seeds, against the system `--against`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import append_rows

ROOT = Path(__file__).resolve().parents[2]
THREADS = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
OUTSIDE = ("cranfield", "cacm", "npl", "msmarco-dl19-sub")


@dataclass(frozen=True)
class Collection:
    """What every system shares on one collection: steps, batch and length are equal for all of them."""

    flags: tuple[str, ...]
    steps: int
    batch: int = 32
    outside: bool = False
    language: str = "en"

    @property
    def scratch(self) -> bool:
        """Whether the encoder is built from the corpus instead of loaded."""
        return "lexical" in self.flags


FROM_SCRATCH = ("--model", "lexical")
SETS = {
    "medquad": Collection((), 200, outside=True),
    "scifact": Collection((), 200, outside=True),
    "nfcorpus-lc": Collection((), 200, outside=True),
    "newwiki": Collection((), 200),
    "korquad": Collection((*FROM_SCRATCH, "--max-seq-length", "512"), 100, language="ko"),
    "docstrings": Collection((*FROM_SCRATCH, "--max-seq-length", "384"), 300, batch=64),
}
# Each system is a preset with its flags; `lexforge` is the default, which the kind of model chooses.
# `plain-far` has the learning rate of `lexforge` and nothing else of it, and `plain-mined` also its mined
# negatives. `no-teacher` and `dense-teacher` are `lexforge` without BM25 as its teacher, and with the encoder
# `--teacher` in its place. `float32` is `lexforge` with an encoder that is never trained in bfloat16.
SYSTEMS: dict[str, tuple[str, ...]] = {
    "start": (),
    "plain": ("--preset", "plain"),
    "plain-far": ("--preset", "plain", "--learning-rate", "3e-4"),
    "plain-mined": ("--preset", "plain", "--learning-rate", "3e-4", "--negatives", "mined"),
    "stock": (),
    "v26": ("--preset", "v26"),
    "v26-anchor": ("--preset", "v26", "--loss.regularized", "anchor"),
    "lexforge": (),
    "float32": ("--precision", "fp32"),
    "no-dropout": ("--dropout", "0"),
    "no-teacher": ("--loss.distillation-weight", "0"),
    "dense-teacher": ("--loss.distillation-weight", "0.5"),
}
# Wanted numbers of terms. Documents alone have one too, to be compared with FLOPS weights set by hand.
# `above` and `below` begin with a model that has far too many or far too few terms, because the bias of its
# decoder is shifted first.
SHIFTS: dict[str, float] = {}
for terms in (32, 64, 128):
    SYSTEMS[f"documents-{terms}"] = ("--document-terms", str(terms))
    SYSTEMS[f"terms-{terms}"] = ("--document-terms", str(terms), "--query-terms", str(terms // 4))
    for side, shift in (("above", 0.6), ("below", -3.0)):
        SHIFTS[f"terms-{terms}-{side}"] = shift
        SYSTEMS[f"terms-{terms}-{side}"] = SYSTEMS[f"terms-{terms}"]
WEIGHTS = ("1e-4", "2e-3", "8e-3", "1e-2", "1.4e-2", "2e-2", "3e-2", "5e-2", "1e-1", "3e-1", "1")
SYSTEMS |= {f"flops-{weight}": ("--loss.flops-weight", weight) for weight in WEIGHTS}
PLAIN_RATES = {"scratch": "1e-3", "pretrained": "1e-4"}


@dataclass(frozen=True)
class Job:
    """One run: a system on a collection with a seed, and the folder that holds what it leaves."""

    system: str
    collection: str
    seed: int
    folder: Path
    split: str = "test"  # whose queries are searched

    @property
    def done(self) -> bool:
        """Whether the run has ended, so that it need not be repeated."""
        return (self.folder / "row.json").is_file()


def command(job: Job, data: Path, model: Path, teacher: str) -> list[str]:
    """The command line of a job: of the recipe, or of the stock trainer."""
    collection = SETS[job.collection]
    source = job.collection if job.collection == "docstrings" else str(data / job.collection)
    start = job.folder / "start" if job.system in SHIFTS else model
    shared = ["--data", source, *(collection.flags or ("--model", str(start)))]
    shared += ["--steps", str(collection.steps), "--batch-size", str(collection.batch)]
    shared += ["--seed", str(job.seed), "--output-dir", str(job.folder / "run")]
    if "--max-seq-length" not in collection.flags:
        shared += ["--max-seq-length", "128"]  # equal for all systems, whatever the model was saved with
    rate = ["--learning-rate", PLAIN_RATES["scratch" if collection.scratch else "pretrained"]]
    if job.system in ("start", "stock"):
        shared += rate if job.system == "stock" else []
        return [sys.executable, "scripts/bench/stock_splade.py", "--system", job.system, *shared]
    flags = [*SYSTEMS[job.system], "--language", collection.language]  # of the stop words
    if job.system in ("plain", "v26", "v26-anchor"):
        flags += rate
    if job.system == "dense-teacher":
        flags += ["--teacher", teacher]
    return [sys.executable, "recipes/splade_v26.py", *flags, "--no-initial-evaluation", *shared]


def run_job(job: Job, data: Path, model: Path, teacher: str) -> dict[str, Any]:
    """Run a job on one thread, measure what it left, and return its row, which its folder holds too.

    What an interrupted run left in the folder is deleted first.
    """
    shutil.rmtree(job.folder, ignore_errors=True)
    job.folder.mkdir(parents=True)
    if job.system in SHIFTS:
        if SETS[job.collection].scratch:
            raise ValueError(f"{job.system} shifts a pretrained model; {job.collection} trains from scratch")
        save_shifted(model, SHIFTS[job.system], job.folder / "start")
    line = command(job, data, model, teacher)
    began = time.perf_counter()
    with (job.folder / "log.txt").open("w", encoding="utf-8") as log:
        done = subprocess.run(line, cwd=ROOT, env=os.environ | THREADS, stdout=log, stderr=log, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(line)} ended with {done.returncode}; see {job.folder / 'log.txt'}")
    seconds = time.perf_counter() - began
    metrics = json.loads((job.folder / "run" / "metrics.json").read_text(encoding="utf-8"))
    trained = metrics["trained"]
    row: dict[str, Any] = {
        "system": job.system,
        "set": job.collection,
        "split": job.split,
        "seed": job.seed,
        **{name: round(trained[name], 5) for name in ("nDCG@10", "RR@10", "R@100")},
        "query_terms": round(trained["query_active_dims"], 1),
        "document_terms": round(trained["document_active_dims"], 1),
        "flops": round(trained["flops"], 3),
        "bm25_nDCG@10": round(metrics["bm25"]["nDCG@10"], 5),
        "seconds": round(seconds),
        "command": _shown(line, job, data, model, teacher),
    }
    (job.folder / "row.json").write_text(json.dumps(row), encoding="utf-8")
    return row


def search_dev(collection: Path, folder: Path) -> None:
    """Make a collection whose split test is the dev of another one, of links to its files."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    files = {"corpus.jsonl": "corpus.jsonl", "queries.jsonl": "queries.jsonl"}
    files |= {"qrels/train.tsv": "qrels/train.tsv", "qrels/test.tsv": "qrels/dev.tsv"}
    for link, file in files.items():
        (folder / link).unlink(missing_ok=True)
        (folder / link).symlink_to(collection / file)


def save_shifted(model: Path, shift: float, folder: Path) -> None:
    """Save a copy of a SPLADE model with another bias of the decoder, so with more or fewer active terms."""
    import torch
    from sentence_transformers import SparseEncoder

    encoder = SparseEncoder(str(model), device="cpu")
    with torch.no_grad():
        encoder[0].model.get_output_embeddings().bias.add_(shift)
    encoder.save_pretrained(str(folder), create_model_card=False)


def _shown(line: list[str], job: Job, data: Path, model: Path, teacher: str) -> str:
    """The command as anyone can repeat it: folders by the names of the options, not those of a machine."""
    shown = shlex.join(["python", *line[1:]])
    folders = {str(data): "DATA", str(model): "MODEL", str(job.folder / "run"): "RUN"}
    if job.system in SHIFTS:
        folders[str(job.folder / "start")] = f"MODEL{SHIFTS[job.system]:+}"
    if teacher:
        folders[teacher] = "TEACHER"
    for folder, name in folders.items():
        shown = shown.replace(folder, name)
    return shown


def measure_outside(job: Job, data: Path) -> list[dict[str, Any]]:
    """Measure a trained model on the collections that it has never seen; one row per collection."""
    line = [sys.executable, "scripts/bench/stock_splade.py", "--system", "measure"]
    line += ["--model", str(job.folder / "run" / "model"), "--data", *(str(data / name) for name in OUTSIDE)]
    done = subprocess.run(
        line, cwd=ROOT, env=os.environ | THREADS, stdout=subprocess.PIPE, text=True, check=True
    )
    rows = []
    for name, measured in json.loads(done.stdout.splitlines()[-1]).items():
        row: dict[str, Any] = {"system": job.system, "trained_on": job.collection, "seed": job.seed}
        row |= {"measured_on": name, **{key: round(measured[key], 5) for key in ("nDCG@10", "R@100")}}
        row |= {
            "query_terms": round(measured["query_active_dims"], 1),
            "document_terms": round(measured["document_active_dims"], 1),
            "flops": round(measured["flops"], 3),
        }
        rows.append(row)
    (job.folder / "outside.json").write_text(json.dumps(rows), encoding="utf-8")
    return rows


def rows_of(runs: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every finished run and its row."""
    for file in sorted(runs.glob("*/*/row.json")):
        yield file.parent, json.loads(file.read_text(encoding="utf-8"))


def table(data: Path, runs: Path, against: str) -> str:
    """A line per set and system, with the p-value against another system, as a Markdown table."""
    from lexforge.data import load_retrieval_data
    from lexforge.evaluation import RunScores, compare_runs, read_run, score_run

    found: dict[tuple[str, str], list[tuple[Path, dict[str, Any]]]] = {}
    for folder, row in rows_of(runs):
        found.setdefault((row["set"], row["system"]), []).append((folder, row))
    lines = [
        "| set | system | seeds | nDCG@10 | p | R@100 | query terms | document terms | FLOPS | "
        "outside nDCG@10 | R@100 | terms | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in SETS:
        source = name if name == "docstrings" else str(data / name)
        systems = [system for system in SYSTEMS if (name, system) in found]
        if not systems:
            continue
        qrels = load_retrieval_data(source).split("test")
        scores: dict[str, RunScores] = {}
        for system in systems:
            seeds = [
                score_run(read_run(folder / "run" / "run.trec"), qrels, ["nDCG@10"])
                for folder, _ in found[name, system]
            ]
            per_query = {
                query: statistics.mean(each.per_query["nDCG@10"][query] for each in seeds)
                for query in seeds[0].per_query["nDCG@10"]
            }
            mean = {"nDCG@10": statistics.mean(per_query.values())}
            scores[system] = RunScores(mean, {"nDCG@10": per_query})
        for system in systems:
            rows = [row for _, row in found[name, system]]
            p = ""
            if against in scores and system != against:
                p = f"{compare_runs(scores[against], scores[system])['nDCG@10'].p_value:.2g}"
            cells = [name, f"`{system}`", str(len(rows)), _spread(rows, "nDCG@10"), p, _spread(rows, "R@100")]
            cells += [f"{_mean(rows, key):.0f}" for key in ("query_terms", "document_terms")]
            cells += [f"{_mean(rows, 'flops'):.2f}"]
            files = [folder / "outside.json" for folder, _ in found[name, system]]
            away = [row for f in files if f.is_file() for row in json.loads(f.read_text(encoding="utf-8"))]
            for key, digits in (("nDCG@10", 4), ("R@100", 4), ("document_terms", 0)):
                cells.append(f"{_mean(away, key):.{digits}f}" if away else "")
            lines.append("| " + " | ".join([*cells, f"{_mean(rows, 'seconds'):.0f}"]) + " |")
    return "\n".join(lines)


def _mean(rows: list[dict[str, Any]], key: str) -> float:
    return statistics.mean(row[key] for row in rows)


def _spread(rows: list[dict[str, Any]], key: str) -> str:
    values = [row[key] for row in rows]
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"


def main() -> None:
    """Run what is asked for and not yet done, or print the table of what is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("run", "outside", "table"))
    parser.add_argument("--data", type=Path, required=True, help="folder of collections in BEIR layout")
    parser.add_argument("--model", type=Path, help="pretrained SPLADE for the sets that fine-tune one")
    parser.add_argument("--teacher", default="", help="dense encoder, the teacher of `dense-teacher`")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=["plain", "lexforge"])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--split", choices=("dev", "test"), default="test", help="whose queries are searched")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--side-by-side", type=int, default=2, help="runs at once, each on one thread")
    parser.add_argument("--against", choices=SYSTEMS, default="plain")
    arguments = parser.parse_args()
    runs, model = arguments.runs.resolve(), arguments.model or Path()
    data = arguments.data.resolve()
    if arguments.split == "dev":
        if "docstrings" in arguments.sets:
            parser.error("--split dev takes sets that are folders: name them by --sets, without docstrings")
        for name in arguments.sets:
            search_dev(data / name, runs / "dev" / name)
        data = runs / "dev"
    if arguments.action == "table":
        print(table(data, runs, arguments.against))
        return
    jobs = [
        Job(system, name, seed, runs / name / f"{system}-{seed}", arguments.split)
        for seed in arguments.seeds
        for name in arguments.sets
        for system in arguments.systems
    ]
    with ThreadPoolExecutor(arguments.side_by_side) as pool:
        if arguments.action == "run":
            if arguments.model is None and any(not SETS[name].scratch for name in arguments.sets):
                parser.error("--model is needed for the sets that fine-tune a pretrained model")
            if not arguments.teacher and "dense-teacher" in arguments.systems:
                parser.error("--teacher is needed for the system dense-teacher")
            waiting = [job for job in jobs if not job.done]
            started = [pool.submit(run_job, job, data, model.resolve(), arguments.teacher) for job in waiting]
            failed = []
            for ended in as_completed(started):
                if ended.exception() is None:
                    append_rows("presets", [ended.result()])
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
