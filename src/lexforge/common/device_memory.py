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
    """What the control groups of this process leave of their limits (Linux; both versions)."""
    second = ("memory.max", "memory.current", "inactive_file")
    first = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    for folder, is_second in control_groups("memory"):
        limit, used, cached = second if is_second else first
        if not (folder / limit).is_file():
            continue
        most = (folder / limit).read_text(encoding="ascii").strip()
        if most != "max":
            statistics = (folder / "memory.stat").read_text(encoding="ascii").split()
            reclaimable = int(statistics[statistics.index(cached) + 1])
            yield int(most) - int((folder / used).read_text(encoding="ascii")) + reclaimable
