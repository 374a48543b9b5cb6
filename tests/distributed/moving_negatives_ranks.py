"""Two ranks train on moving negatives; run by tests/training/test_negatives.py, which reads what it saves."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lexforge.data import NegativeRule
from lexforge.runs import leave_processes
from lexforge.training import MovingNegatives


def load_test_module() -> Any:
    path = Path(__file__).parents[1] / "training" / "test_negatives.py"
    specification = importlib.util.spec_from_file_location("moving_negatives", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def main(checkpoint: str, folder: str) -> None:
    test = load_test_module()
    rule = NegativeRule(per_row=2, last_rank=20)
    negatives = MovingNegatives(test.retrieval_data(), rule)
    mined: list[list[list[int]]] = []
    mine = negatives._mine_on_all_ranks

    def recorded(model: Any, epoch: int) -> Any:
        positions = mine(model, epoch)
        mined.append(positions.tolist())
        return positions

    negatives._mine_on_all_ranks = recorded
    options = {"per_device_train_batch_size": 2, "save_strategy": "no"}
    trainer = test.make_trainer(test.fresh(Path(checkpoint)), Path(folder) / "run", negatives, **options)
    trainer.train()
    weights = {name: value.tolist() for name, value in trainer.model.state_dict().items()}

    def fails(*arguments: Any) -> None:
        raise RuntimeError("rank 0 failed")

    negatives._mine = fails
    try:
        mine(trainer.model, 3)
        error = "none"
    except RuntimeError as raised:
        error = str(raised)
    torch.save({"mined": mined, "weights": weights, "error": error}, f"{folder}/rank{dist.get_rank()}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave_processes()
