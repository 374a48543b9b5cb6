"""What `lexforge adapt` brings without labels: collections x teachers x seeds, measured on judged queries.

    python scripts/bench/bench_adapt.py --data ../shared/data --model ../shared/models/splade-tiny \
        --runs runs/adapt --sets scifact medquad --teachers "start bm25" "start bm25 MINILM" --seeds 1 2 3
    python scripts/bench/bench_adapt.py --paired --data ../shared/data --model ../shared/models/splade-tiny \
        --runs runs/adapt --sets scifact medquad --seeds 1 2 3 --split test

Call it from the root of the checkout. Each run adapts the model to the documents of one collection, whose
judged queries it does not see, and then measures start and result on those of `--split`, in a search of
passages as the index of `lexforge adapt` does it: a document is as good as its best passage. Rows go to
results/adapt.csv, with the gate's verdict, so that its verdicts can be held against the truth. Two runs go
side by side, each on one thread. A run whose folder is complete is not repeated; delete that of an
interrupted one. `--flags` go to each run and into its row. `--paired` tests the nDCG@10 of finished runs,
averaged over the seeds, against that of the start, query by query; by articles where queries share one.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench_presets import SETS, articles
from common import append_rows, run_command

from lexforge.data import load_retrieval_data
from lexforge.evaluation import RunScores, compare_runs, read_run, score_run

MEASURES = ("nDCG@10", "R@100", "document_active_dims", "query_active_dims", "flops")
LEXFORGE = (sys.executable, "-m", "lexforge")
NOT_BETTER = 3  # the exit status of `lexforge adapt` where the start is kept


def measure(model: str, data: Path, split: str, length: int, file: Path) -> dict[str, float | None]:
    """Measure an encoder on judged queries by the passages of their documents, once for each file.

    The documents that it found stand beside the file (`.trec`). A dense start has no terms.
    """
    run = file.with_suffix(".trec")
    if not (file.is_file() and run.is_file()):
        words = ["--model", model, "--data", str(data), "--split", split, "--max-seq-length", str(length)]
        words += ["--passages", "--json", str(file), "--run", str(run)]
        run_command([*LEXFORGE, "evaluate", *words], file.with_suffix(".log"))
    found = json.loads(file.read_text(encoding="utf-8"))
    numbers = found["metrics"] | found["sparsity"]
    return {name: round(numbers[name], 4) if name in numbers else None for name in MEASURES}


def names_of(teachers: str) -> str:
    """Return the names of teachers, without the folders in which models stand."""
    return " ".join(Path(teacher).name for teacher in teachers.split()) or "default"


def start_file(args: argparse.Namespace, name: str) -> Path:
    """Return the file that holds what the start measured on a collection."""
    return Path(args.runs) / f"start-{name}-{args.split}-{Path(args.model).name}-{args.length}.json"


def run_folder(args: argparse.Namespace, name: str, teachers: str, seed: int) -> Path:
    """Return the folder of a run."""
    settings = "".join(character if character.isalnum() else "-" for character in args.flags)
    start, label = f"{Path(args.model).name}-{args.length}", names_of(teachers).replace(" ", "+")
    return Path(args.runs) / f"{name}-{start}-{label}{settings}-{seed}"


def measure_both(
    args: argparse.Namespace, name: str, teachers: str, seed: int
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Measure the start and the adapted weights, also where the gate kept the start, to judge its verdict."""
    data, folder = Path(args.data) / name, run_folder(args, name, teachers, seed)
    verdict = json.loads((folder / "adapt.json").read_text(encoding="utf-8"))["verdict"]
    adapted = folder / ("model" if verdict["better"] else "rejected")
    before = measure(args.model, data, args.split, args.length, start_file(args, name))
    return before, measure(str(adapted), data, args.split, args.length, folder / f"{args.split}.json")


def paired(args: argparse.Namespace, name: str, teachers: str) -> str:
    """Test finished runs against their start, query by query, and return the row of a table in markdown."""
    qrels = load_retrieval_data(str(Path(args.data) / name), [args.split]).split(args.split)
    files = [run_folder(args, name, teachers, seed) / f"{args.split}.trec" for seed in args.seeds]
    for seed in args.seeds:
        measure_both(args, name, teachers, seed)

    def scores(files: list[Path]) -> RunScores:
        """The nDCG@10 of each query, averaged over the runs."""
        found = [score_run(read_run(file), qrels, ["nDCG@10"]).per_query["nDCG@10"] for file in files]
        mean = {query: statistics.mean(each[query] for each in found) for query in found[0]}
        return RunScores({"nDCG@10": statistics.mean(mean.values())}, {"nDCG@10": mean})

    start = scores([start_file(args, name).with_suffix(".trec")])
    groups = articles(Path(args.data) / name, qrels) if name in SETS and SETS[name].by_article else None
    found = compare_runs(start, scores(files), groups=groups)["nDCG@10"]
    low, high = found.interval
    cells = [name, args.split, names_of(teachers), str(len(files)), str(len(qrels)), f"{found.first:.4f}"]
    cells += [f"{found.second:.4f}", f"{found.difference:+.4f} ({low:+.4f} to {high:+.4f})"]
    return f"| {' | '.join(cells)} | {found.p_value:.2g} |"


def run(args: argparse.Namespace, name: str, teachers: str, seed: int) -> dict[str, Any]:
    """Adapt to one collection and measure; return the row."""
    data, folder = Path(args.data) / name, run_folder(args, name, teachers, seed)
    words = ["adapt", "--documents", str(data), "--model", args.model, "--output", str(folder)]
    words += ["--max-seq-length", str(args.length), "--seed", str(seed), *shlex.split(args.flags)]
    words += ["--teacher", *teachers.split()] if teachers else []
    if not (folder / "adapt.json").is_file():
        log = folder.with_name(f"{folder.name}.log")  # the command wants an empty folder
        log.parent.mkdir(parents=True, exist_ok=True)
        seconds, cpu_seconds = run_command([*LEXFORGE, *words], log, (0, NOT_BETTER))
        measured = {"seconds": seconds, "cpu_seconds": cpu_seconds}
        (folder / "bench.json").write_text(json.dumps(measured), encoding="utf-8")
    cost = json.loads((folder / "bench.json").read_text(encoding="utf-8"))
    verdict = json.loads((folder / "adapt.json").read_text(encoding="utf-8"))["verdict"]
    before, after = measure_both(args, name, teachers, seed)
    return {
        "set": name,
        "split": args.split,
        "model": Path(args.model).name,
        "teachers": names_of(teachers),
        "seed": seed,
        "flags": args.flags,
        **{f"start_{key}": value for key, value in before.items()},
        **after,
        "gate_better": verdict["better"],
        "gate_difference": round(verdict["comparison"]["difference"], 4),
        **{key: round(value, 1) for key, value in cost.items()},
        "command": shlex.join(["lexforge", *words]),
    }


def main() -> None:
    """Run what is asked for and append its rows, or test finished runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder of folders in BEIR layout")
    parser.add_argument("--model", required=True, help="the start")
    parser.add_argument("--runs", required=True, help="folder of the runs")
    parser.add_argument("--sets", nargs="+", required=True)
    parser.add_argument("--teachers", nargs="+", default=[""], help="each value is the --teacher of a run")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--split", default="dev", help="judged queries that are measured at the end")
    parser.add_argument("--length", type=int, default=128, help="tokens per text")
    parser.add_argument("--flags", default="", help="further flags of `lexforge adapt`")
    parser.add_argument("--lanes", type=int, default=2, help="runs side by side")
    parser.add_argument("--paired", action="store_true", help="test finished runs against their start")
    args = parser.parse_args()
    if args.paired:
        print("| set | split | teachers | seeds | queries | start | adapted | difference (95 %) | p |")
        print("|---" * 9 + "|")
        for name in args.sets:
            for teachers in args.teachers:
                print(paired(args, name, teachers))
        return
    jobs = [(name, teachers, seed) for seed in args.seeds for teachers in args.teachers for name in args.sets]
    with ThreadPoolExecutor(args.lanes) as lanes:
        for row in lanes.map(lambda job: run(args, *job), jobs):
            append_rows("adapt", [row])


if __name__ == "__main__":
    main()
