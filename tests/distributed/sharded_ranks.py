"""One step of NeuralSparseLoss through the fused head of a model sharded by FSDP2: run under torchrun.

torchrun --nproc-per-node 2 sharded_ranks.py CHECKPOINT OUTPUT
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from neural_sparse_ranks import ROWS, SETTINGS, parts_and_gradients
from torch.distributed.fsdp import fully_shard

from lexforge.models import fuse_splade_head
from lexforge.runs import leave_processes


def shard(model: torch.nn.Module) -> torch.nn.Module:
    """Each layer a group of its own; the output embedding stays with the root."""
    fuse_splade_head(model)  # type: ignore[arg-type]
    for module in list(model.modules()):
        if type(module).__name__ == "BertLayer":
            fully_shard(module)
    return fully_shard(model)


def main(checkpoint: str, output: str) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    share = ROWS // ranks
    results = {}
    for setting in SETTINGS:
        rows = slice(rank * share, (rank + 1) * share)
        parts, gradients = parts_and_gradients(checkpoint, setting, rows, shard)
        for part in parts.values():
            dist.all_reduce(part)
            part /= ranks
        results[setting] = parts, {name: gradient.full_tensor() for name, gradient in gradients.items()}
    if rank == 0:
        torch.save(results, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave_processes()
