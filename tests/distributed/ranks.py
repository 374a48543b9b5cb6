"""Call a function of a test file on every rank, and save what each of them returns.

torchrun --nproc-per-node 2 ranks.py TEST_FILE FUNCTION CHECKPOINT FOLDER
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from lexforge.runs import leave_processes


def main(file: str, function: str, checkpoint: str, folder: str) -> None:
    """The function takes the checkpoint and a folder, whose `results.pt` then lists its results by rank."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    result = runpy.run_path(file)[function](checkpoint, Path(folder))
    results = [result]
    if dist.is_initialized():
        results = [None] * dist.get_world_size()
        dist.all_gather_object(results, result)
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(results, Path(folder) / "results.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave_processes()
