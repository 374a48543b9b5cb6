"""Which processor this is."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@cache
def processor_name(cpuinfo: Path = CPUINFO) -> str:
    """Return the model of the processor with the numbers that tell generations of one name apart.

    Virtual machines often report a brand alone ("AMD EPYC" for several generations).

    Args:
        cpuinfo: The file in which Linux describes the processor.

    Returns:
        Such as "AMD EPYC (family 26, model 2)"; of ARM the numbers of its core; elsewhere than on Linux what
        Python knows of it.
    """
    known: dict[str, str] = {}
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            known.setdefault(name.strip(), value.strip())
    if "model name" not in known and "CPU part" in known:  # ARM on Linux
        numbers = (known.get(name, "?") for name in ("CPU implementer", "CPU part", "CPU variant"))
        return f"{platform.machine()} (implementer, part, variant {', '.join(numbers)})"
    if "model name" not in known:
        return platform.processor() or platform.machine()
    if "cpu family" not in known:
        return known["model name"]
    return f"{known['model name']} (family {known['cpu family']}, model {known.get('model', '?')})"
