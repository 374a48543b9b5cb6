"""What every benchmark shares: one process a measurement, time, peak memory, and rows with their origin."""

from __future__ import annotations

import csv
import itertools
import json
import multiprocessing
import os
import platform
import shlex
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from lexforge.common.processor import processor_name

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "scripts" / "bench" / "results"
PACKAGES = ("torch", "transformers", "sentence-transformers", "numpy", "numba")
# Variables of a process that is to compute on one thread.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class Size(NamedTuple):
    """The shape of an encoder."""

    layers: int
    width: int
    heads: int
    terms: int = 30_522


SIZES = {
    "tiny": Size(2, 128, 2),
    "minilm": Size(6, 384, 12),
    "small": Size(12, 384, 12),
    "base": Size(12, 768, 12),
    "xlmr": Size(12, 768, 12, 250_002),
    "large": Size(24, 1024, 16, 250_002),
}


def environment() -> dict[str, str]:
    """The columns that say where a row comes from: processor, threads, versions and commit."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()

    changed = bool(git("status", "--porcelain", "--untracked-files=no", "--", "src"))
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "commit": git("rev-parse", "--short", "HEAD") + ("+changes" if changed else ""),
        "device": f"{processor_name()}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
    }


def read_texts(path: str | Path, count: int) -> list[str]:
    """The field `text` of the first so many JSON lines of a file."""
    with Path(path).open(encoding="utf-8") as stream:
        return [json.loads(line)["text"] for line in itertools.islice(stream, count)]


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a module-level function in a fresh process (spawned) and return its result."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def run_command(line: Sequence[str], log: Path, statuses: Sequence[int] = (0,)) -> tuple[float, float]:
    """Run a command on one thread, from the root of the checkout, and measure it and what it starts.

    Args:
        line: Its words.
        log: The file that gets its output.
        statuses: The exit statuses that it may have.

    Returns:
        Its seconds and its CPU-seconds, which those of a command beside it are no part of.

    Raises:
        RuntimeError: If it ends with another exit status.
    """
    began = time.perf_counter()
    with log.open("w", encoding="utf-8") as stream:
        started = subprocess.Popen(line, cwd=ROOT, env=os.environ | ONE_THREAD, stdout=stream, stderr=stream)
        _, status, usage = os.wait4(started.pid, 0)
    if (code := os.waitstatus_to_exitcode(status)) not in statuses:
        raise RuntimeError(f"{shlex.join(line)} ended with {code}; see {log}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime


def measure(function: Callable[[], object], repeats: int = 3) -> dict[str, float]:
    """Time and peak memory of a call; the first call warms up and gives the peak.

    Returns:
        `median_s`, `min_s`, `max_s` over `repeats` calls, and `peak_mb`: the most resident memory of this
        process during the first call above what it held before, in MB (10^6 bytes).
    """
    before = reset_peak()
    function()
    peak = peak_mb() - before
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return {
        "median_s": round(statistics.median(seconds), 5),
        "min_s": round(min(seconds), 5),
        "max_s": round(max(seconds), 5),
        "peak_mb": round(peak, 1),
    }


def reset_peak() -> float:
    """Set this process's peak of resident memory back to what it holds now; returns that, in MB (Linux)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return status_mb("VmRSS")


def peak_mb() -> float:
    """The most resident memory of this process since `reset_peak`, in MB (10^6 bytes)."""
    return status_mb("VmHWM")


def status_mb(kind: str) -> float:
    """Memory of this process in MB (10^6 bytes), by its name in /proc/self/status, such as "RssAnon"."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(kind + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"/proc/self/status has no {kind}")


def append_rows(name: str, rows: list[dict[str, Any]]) -> None:
    """Append rows with the columns of `environment()` to `scripts/bench/results/<name>.csv` and print them.

    Raises:
        ValueError: If the file's columns differ.
    """
    append_to_file(RESULTS / f"{name}.csv", [{**row, **environment()} for row in rows])
    for row in rows:
        print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)


def append_to_file(path: Path, rows: list[dict[str, Any]]) -> None:
    """Append rows to a CSV file, which is made if it is missing.

    Raises:
        ValueError: If the file's columns differ.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(rows[0])
    exists = path.exists()
    if exists:
        with path.open(encoding="utf-8", newline="") as stream:
            header = next(csv.reader(stream))
        if header != columns:
            raise ValueError(f"{path} has the columns {header}, got {columns}")
    with path.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, columns)
        if not exists:
            writer.writeheader()
        writer.writerows(rows)
