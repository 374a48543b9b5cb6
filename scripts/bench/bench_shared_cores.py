"""A training step on cores that other processes use too: how many threads, and how they wait.

    python scripts/bench/bench_shared_cores.py --model ../shared/models/splade-tiny --texts corpus.jsonl

For each number of busy processes (an endless loop each), the fused step of bench_train_step.py is taken in a
process of its own with each setting: all threads as OpenMP waits by default, all threads that sleep while
they wait (`OMP_WAIT_POLICY=passive`), and one thread. The settings are made before torch is loaded, because
OpenMP reads them once. Rows go to results/shared_cores.csv.
"""

from __future__ import annotations

import os
import subprocess
import sys
from unittest import mock

import tyro
from bench_train_step import run
from common import append_rows, in_own_process, read_texts

LENGTH = 128  # tokens per text
CORES = str(len(os.sched_getaffinity(0)))
SETTINGS: list[dict[str, str]] = [
    {"OMP_NUM_THREADS": CORES},
    {"OMP_NUM_THREADS": CORES, "OMP_WAIT_POLICY": "passive"},
    {"OMP_NUM_THREADS": "1"},
]


def main(model: str, texts: str, rows: int = 16, busy: tuple[int, ...] = (0, 1), repeats: int = 7) -> None:
    """Measure every setting beside each number of busy processes.

    Args:
        model: Folder of a masked language model.
        texts: JSON lines with a field text.
        rows: Rows of two texts in a batch.
        busy: Numbers of busy processes.
        repeats: Steps that are timed.
    """
    some = read_texts(texts, 2 * rows)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    for count in busy:
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
        try:
            for setting in SETTINGS:
                with mock.patch.dict(os.environ, kept | setting, clear=True):
                    measured = in_own_process(run, True, model, some, LENGTH, repeats)
                row = {
                    "busy_processes": count,
                    "waiting": setting.get("OMP_WAIT_POLICY", "default"),
                    "rows": rows,
                    "threads": int(setting["OMP_NUM_THREADS"]),
                }
                row |= {name: measured[name] for name in ("median_s", "min_s", "max_s", "peak_mb")}
                append_rows("shared_cores", [row])
        finally:
            for other in others:
                other.kill()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
