"""The control groups of this process, by which Linux limits its memory and its share of the processors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def control_groups(controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of the control groups whose limits count for this process, its own group first.

    Args:
        controller: What is limited: `memory` or `cpu`.

    Yields:
        A folder, which need not be there (a container may see the root alone), and whether its files are
        those of version 2. Nothing where the system is not Linux.
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
            if folder.is_relative_to(root):
                yield folder, not controllers
