"""How the threads of a run wait for one another where other processes use the same cores.

Each parallel operation of torch ends when its slowest thread does, and by default the others wait in a busy
loop. Where another process holds a core, that loop takes away the very time which the slow thread needs. With
`OMP_WAIT_POLICY=passive` the threads sleep instead. Measured on two cores
(scripts/bench/bench_shared_cores.py): beside one busy process a training step took .33 s in place of .72, and
alone .23 s in place of .18. So threads sleep only where the cores are shared. How threads wait changes no
result.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

POLICY = "OMP_WAIT_POLICY"
SHARED = 0.5  # cores that others use, from which on they are called shared
STAT = Path("/proc/stat")


def busy_cores(seconds: float = 0.1) -> float:
    """Measure how many of the cores that this process may use are kept busy by other processes.

    Args:
        seconds: How long to measure; the system counts in steps of 0.01 s.

    Returns:
        A number from 0 to the number of cores; 0 where the system does not tell, as only Linux does.
    """
    if not STAT.is_file():
        return 0.0
    cores = os.sched_getaffinity(0)
    own, before = time.process_time(), _idle_seconds(cores)
    start = time.perf_counter()
    time.sleep(seconds)
    idle, elapsed = _idle_seconds(cores) - before, time.perf_counter() - start
    used = len(cores) - idle / elapsed - (time.process_time() - own) / elapsed
    return min(max(used, 0.0), float(len(cores)))


def share_cores() -> None:
    """Let the threads of this process sleep while they wait, if other processes use its cores.

    It works only before torch is imported, because OpenMP reads the variable once. What the user has set
    stays. A line on standard error tells of it.
    """
    was_set = POLICY in os.environ or "GOMP_SPINCOUNT" in os.environ
    if "torch" in sys.modules or was_set or busy_cores() < SHARED:
        return
    os.environ[POLICY] = "passive"
    print(f"Other processes use these cores: threads sleep while they wait ({POLICY}).", file=sys.stderr)


def _idle_seconds(cores: set[int]) -> float:
    """The seconds since the start of the system in which these cores did nothing or waited for a disk."""
    ticks = 0
    for line in STAT.read_text(encoding="ascii").splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            ticks += int(numbers[3]) + int(numbers[4])
    return ticks / os.sysconf("SC_CLK_TCK")
