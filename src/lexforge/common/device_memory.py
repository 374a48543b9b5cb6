"""The memory of a device: how much is free, and the most that this process has held."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import psutil
import torch

from lexforge.common.control_groups import control_groups


def free_memory(device: torch.device) -> int:
    """Read how much memory is free on a device.

    Args:
        device: A GPU, or the CPU, where the limits of the process's control groups count too.

    Returns:
        Bytes.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min([psutil.virtual_memory().available, *_left_in_control_groups()])


def peak_memory(device: torch.device) -> int:
    """Read the most memory that this process has held so far.

    Args:
        device: A GPU, whose tensors are counted, or the CPU, where all of the process counts.

    Returns:
        Bytes.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource  # Windows has no such module

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _left_in_control_groups() -> Iterator[int]:
    """What the control groups of this process leave of their limits (Linux)."""
    second = ("memory.max", "memory.current", "memory.stat")
    first = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
    for limit, used, statistics in control_groups("memory", second, first):
        if limit.strip() != "max":
            numbers = dict(line.split() for line in statistics.splitlines())
            # Cached files are given back when needed. Only version 1 has another number of the groups below.
            cached = numbers.get("total_inactive_file") or numbers["inactive_file"]
            yield int(limit) - int(used) + int(cached)
