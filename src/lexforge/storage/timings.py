"""What was timed on this machine, so that what is fastest here is measured once and chosen again.

A process that measured anew might choose differently, and end with other last digits. So the user's cache
keeps the times for this processor, this version of torch and this number of threads, and a checkpoint keeps
them too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from lexforge.common.processor import processor_name
from lexforge.storage.files import cache_folder, write_file

logger = logging.getLogger(__name__)

VERSION = 4  # of the cached file; raised when what is measured changes
_TIMINGS: dict[str, dict[str, dict[str, float]]] = {}  # machine -> what was timed -> way -> seconds


def timed(name: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return the times of the ways to do something on this machine.

    Args:
        name: What is done, and all that its times depend on beside the machine.
        measure: Times each way; it is called if nothing of that name is known.

    Returns:
        Way -> seconds.
    """
    if name not in timings():
        times = _stored().get(name)
        if times is None:
            times = measure()
            logger.debug("%s took %s", name, times)
            _store(name, times)
            # What another process stored meanwhile counts: later processes go by it.
            times = _stored().get(name, times)
        timings()[name] = times
    return timings()[name]


def timings() -> dict[str, dict[str, float]]:
    """What is known of this machine: what was timed -> way -> seconds."""
    machine = _machine()
    if machine not in _TIMINGS:
        _TIMINGS[machine] = _stored()
    return _TIMINGS[machine]


def state() -> dict[str, Any]:
    """What this process goes by, in JSON types, for `load_state`; empty if nothing was timed."""
    return {"machine": _machine(), "timings": timings()} if timings() else {}


def load_state(state: Mapping[str, Any]) -> None:
    """Go by what an earlier process timed, if it ran on this machine.

    Args:
        state: What `state` returned.
    """
    if state["machine"] == _machine():
        timings().update(state["timings"])
    else:
        logger.info("what is fastest is measured anew: %s is not %s", _machine(), state["machine"])


def cache_file() -> Path:
    """The file that keeps what was timed."""
    return cache_folder() / "timings.json"


def _machine() -> str:
    """What the times depend on."""
    instructions = torch.backends.cpu.get_cpu_capability()
    return f"{processor_name()}, {instructions}, torch {torch.__version__}, {torch.get_num_threads()} threads"


def _stored() -> dict[str, dict[str, float]]:
    """What the cached file knows of this machine."""
    return _read().get(_machine(), {})


def _store(name: str, times: dict[str, float]) -> None:
    """Add what was timed, and what this process goes by, to the cached file; what stands there stays."""
    machines = _read()
    machines[_machine()] = timings() | {name: times} | machines.get(_machine(), {})
    content = {"format": VERSION, "machines": machines}
    try:
        write_file(cache_file(), json.dumps(content, indent=1).encode())
    except OSError as error:
        logger.warning("timings cannot be kept (%s): each process measures anew", error)


def _read() -> dict[str, dict[str, dict[str, float]]]:
    """The machines of the cached file; none if it is missing, damaged or of another format."""
    try:
        content = json.loads(cache_file().read_text(encoding="utf-8"))
        return content["machines"] if content["format"] == VERSION else {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning("earlier timings cannot be read (%r): they are measured and written anew", error)
        return {}
