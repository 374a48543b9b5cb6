"""Backbones without a head of a masked language model: the same short training of each, before and after.

    python scripts/bench/bench_backbones.py --name splade-tiny --model ../shared/models/splade-tiny \
        --data ../shared/data/scifact --runs runs/backbones --steps 150 --batch-size 16

It runs recipes/splade_v26.py on one thread and appends one row to results/backbones.csv: the measures of the
model before training (its decoder scaled by the documents, if it has no head) and after training, with
BM25 over the same documents. `--name` names the model in the row. Options after `--` go to the recipe, such
as `-- --eval-documents 1000`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import ONE_THREAD, append_rows

ROOT = Path(__file__).resolve().parents[2]


def command(arguments: argparse.Namespace, folder: Path) -> list[str]:
    """The command line of the recipe."""
    return [
        sys.executable, "recipes/splade_v26.py", "--preset", arguments.preset,
        "--data", str(arguments.data), "--model", str(arguments.model),
        "--max-seq-length", str(arguments.tokens), "--steps", str(arguments.steps),
        "--batch-size", str(arguments.batch_size),
        "--seed", str(arguments.seed), "--output-dir", str(folder), *arguments.others,
    ]  # fmt: skip


def row(arguments: argparse.Namespace, folder: Path, line: list[str], seconds: float) -> dict[str, Any]:
    """What a finished run found."""
    from lexforge.models import load_encoder

    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    model = load_encoder(str(folder / "model"), device="cpu")
    shown = shlex.join(["python", *line[1:]])
    for value, name in ((arguments.data, "DATA"), (arguments.model, "MODEL"), (folder, "RUN")):
        shown = shown.replace(str(value), name)
    found: dict[str, Any] = {
        "backbone": arguments.name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "set": arguments.data.name,
        "seed": arguments.seed,
        "bm25_nDCG@10": round(metrics["bm25"]["nDCG@10"], 4),
    }
    for when in ("initial", "trained"):
        found |= {f"{when}_{key}": round(metrics[when][key], 4) for key in ("nDCG@10", "R@100")}
        found |= {
            f"{when}_{kind}_terms": round(metrics[when][f"{kind}_active_dims"], 1)
            for kind in ("query", "document")
        }
    return found | {"seconds": round(seconds), "command": shown}


def main() -> None:
    """Train one backbone and append its row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="name of the backbone in the row")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder in BEIR layout")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--preset", default="lexforge")
    parser.add_argument("--tokens", type=int, default=128, help="tokens per text")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("others", nargs="*", help="further options of the recipe, after --")
    arguments = parser.parse_args()
    run = f"{arguments.name}-{arguments.data.name}-{arguments.preset}-{arguments.steps}-{arguments.seed}"
    folder = (arguments.runs / run).resolve()
    arguments.data, arguments.model = arguments.data.resolve(), arguments.model.resolve()
    line = command(arguments, folder)
    began = time.perf_counter()
    subprocess.run(line, cwd=ROOT, env=os.environ | ONE_THREAD, check=True)
    append_rows("backbones", [row(arguments, folder, line, time.perf_counter() - began)])


if __name__ == "__main__":
    main()
