"""The control groups of this process, by which Linux limits its memory and its share of the processors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def control_groups(controller: str, second: Sequence[str], first: Sequence[str]) -> Iterator[list[str]]:
    """Yield what the control groups say whose limits count for this process, its own group first.

    Args:
        controller: What is limited: `memory` or `cpu`.
        second: The files to read in a group of version 2.
        first: The files to read in a group of version 1.

    Yields:
        The text of each file; nothing of a group that lacks one (a container may see the root alone), and
        nothing where the system is not Linux.
    """
    try:
        lines = MEMBERSHIP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = ROOT / controller if controllers else ROOT
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            files = [folder / name for name in (first if controllers else second)]
            if folder.is_relative_to(root) and all(file.is_file() for file in files):
                yield [file.read_text(encoding="ascii") for file in files]
