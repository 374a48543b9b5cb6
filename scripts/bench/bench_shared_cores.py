"""A training step on cores that other processes use too: how many threads, and how they wait.

    python scripts/bench/bench_shared_cores.py --model ../shared/models/splade-tiny --texts corpus.jsonl

For each number of busy processes (an endless loop each), the fused step of bench_train_step.py is taken in a
process of its own with each setting: all
threads as OpenMP waits by default, all threads that sleep while they wait (`OMP_WAIT_POLICY=passive`), and
one thread. The settings are made before torch is loaded, because OpenMP reads them once. Rows go to
results/shared_cores.csv.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

from bench_train_step import run
from common import append_rows, in_own_process

LENGTH = 128  # tokens per text
CORES = len(os.sched_getaffinity(0))
SETTINGS: list[dict[str, str]] = [
    {"OMP_NUM_THREADS": str(CORES)},
    {"OMP_NUM_THREADS": str(CORES), "OMP_WAIT_POLICY": "passive"},
    {"OMP_NUM_THREADS": "1"},
]


def main() -> None:
    """Measure every setting beside each number of busy processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of a masked language model")
    parser.add_argument("--texts", required=True, help="JSON lines with a field text")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    with Path(args.texts).open(encoding="utf-8") as stream:
        texts = [json.loads(line)["text"] for line, _ in zip(stream, range(2 * args.rows), strict=False)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    for count in args.busy:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
        try:
            for setting in SETTINGS:
                with mock.patch.dict(os.environ, kept | setting, clear=True):
                    measured = in_own_process(run, True, args.model, texts, LENGTH, args.repeats)
                row = {
                    "busy_processes": count,
                    "waiting": setting.get("OMP_WAIT_POLICY", "default"),
                    "rows": args.rows,
                    "threads": int(setting["OMP_NUM_THREADS"]),
                }
                row |= {name: measured[name] for name in ("median_s", "min_s", "max_s", "peak_mb")}
                append_rows("shared_cores", [row])
        finally:
            for other in others:
                other.kill()


if __name__ == "__main__":
    main()
