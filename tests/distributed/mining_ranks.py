"""Two ranks mine the negatives of a set: run by tests/negatives/test_mining.py, which reads what it saves."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lexforge.models import build_splade
from lexforge.negatives import NegativeRule, mine_once
from lexforge.runs import join_processes, leave_processes


def load_test_module() -> Any:
    path = Path(__file__).parents[1] / "negatives" / "test_mining.py"
    specification = importlib.util.spec_from_file_location("mining", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def main(checkpoint: str, output: str) -> None:
    join_processes()
    test, folder = load_test_module(), Path(output)
    model = build_splade(checkpoint, max_seq_length=32, device="cpu")
    rows = mine_once(model, test.retrieval_data(), test.BEST, folder / "mined.jsonl")
    try:
        mine_once(model, test.retrieval_data(), NegativeRule(per_row=40), folder / "failed.jsonl")
        error = "none"
    except ValueError as raised:
        error = str(raised)
    torch.save({"rows": rows, "error": error}, folder / f"rank{dist.get_rank()}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave_processes()
