"""A training step on cores that other processes use too: how many threads, and how they wait.

    python scripts/bench/bench_shared_cores.py --model ../shared/models/splade-tiny --texts corpus.jsonl

For each number of busy processes (an endless loop each) one process takes steps with each setting: all
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
from typing import Any
from unittest import mock

from common import append_rows, in_own_process, measure

CORES = len(os.sched_getaffinity(0))
SETTINGS: list[dict[str, str]] = [
    {"OMP_NUM_THREADS": str(CORES)},
    {"OMP_NUM_THREADS": str(CORES), "OMP_WAIT_POLICY": "passive"},
    {"OMP_NUM_THREADS": "1"},
]


def steps(model_folder: str, texts: list[str], repeats: int) -> dict[str, Any]:
    """Time training steps of a SPLADE model in a process of its own."""
    import torch
    from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss

    from lexforge.models import build_splade

    torch.manual_seed(0)
    model = build_splade(model_folder, max_seq_length=128).train()
    loss = SpladeLoss(
        model,
        SparseMultipleNegativesRankingLoss(model),
        document_regularizer_weight=3e-4,
        query_regularizer_weight=3e-4,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)  # the same step each time
    columns = [model.preprocess(texts[: len(texts) // 2]), model.preprocess(texts[len(texts) // 2 :])]

    def step() -> None:
        optimizer.zero_grad()
        torch.stack(list(loss([dict(column) for column in columns], None).values())).sum().backward()
        optimizer.step()

    return {"rows": len(texts) // 2, "threads": torch.get_num_threads(), **measure(step, repeats)}


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
                    row = in_own_process(steps, args.model, texts, args.repeats)
                policy = setting.get("OMP_WAIT_POLICY", "default")
                append_rows("shared_cores", [{"busy_processes": count, "waiting": policy, **row}])
        finally:
            for other in others:
                other.kill()


if __name__ == "__main__":
    main()
