"""Which processor this is."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path


@cache
def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model of the processor with the numbers that tell generations of one name apart.

    Virtual machines often report a brand alone ("AMD EPYC" for several generations).

    Args:
        cpuinfo: The file in which Linux describes the processor.

    Returns:
        Such as "AMD EPYC (family 26, model 2)"; where Linux names no model, and elsewhere, what Python knows.
    """
    known: dict[str, str] = {}
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            known.setdefault(name.strip(), value.strip())
    if "model name" not in known:
        return platform.processor() or platform.machine()
    numbers = f"family {known.get('cpu family', '?')}, model {known.get('model', '?')}"
    return f"{known['model name']} ({numbers})"
