"""What the GPU benchmarks share: event timing, peak memory, the largest batch, rows with their origin."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, append_to_file

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "triton", "transformers", "sentence-transformers")


class Bench:
    """One run of a script: where it runs, when it must end, and where its rows go."""

    def __init__(self, name: str, description: str | None) -> None:
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV")
        parser.add_argument("--budget-s", type=float, default=240.0, help="no measurement starts after this")
        parser.add_argument("--smoke", action="store_true", help="tiny sizes on the CPU, no rows")
        args = parser.parse_args()
        if not args.smoke and not torch.cuda.is_available():
            sys.exit(f"{name}: no CUDA device (--smoke tries the script on the CPU)")
        self.smoke: bool = args.smoke
        self.device = "cpu" if args.smoke else "cuda"
        self.path: Path = args.out / f"{name}.csv"
        self.ends = time.monotonic() + args.budget_s

    def spent(self, what: str) -> bool:
        """Whether the time is up; says what is left out."""
        over = time.monotonic() > self.ends
        if over:
            print(f"| time is up, left out: {what}", flush=True)
        return over

    def origin(self) -> dict[str, str]:
        """Date, commit (or $COMMIT where there is no git), device and versions."""
        git = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
        done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
        commit = os.environ.get("COMMIT") or done.stdout.strip() or "unknown"
        versions = {package: version(package) for package in PACKAGES}
        return {
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "commit": commit,
            "device": torch.cuda.get_device_name(),
            **versions,
        }

    def append(self, row: dict[str, Any]) -> None:
        """Print a row as a line that starts with a bar; append it to the CSV, except in a smoke run."""
        print("| " + "  ".join(f"{key} {value}" for key, value in row.items() if value != ""), flush=True)
        if self.smoke:
            return
        append_to_file(self.path, [{**row, **self.origin()}])

    def times_ms(self, call: Callable[[], object]) -> list[float]:
        """Median, 20 % and 80 % quantile of a call in ms, by device events."""
        if self.smoke:
            start = time.perf_counter()
            call()
            return [round((time.perf_counter() - start) * 1e3, 3)] * 3
        from triton.testing import do_bench

        return [round(value, 3) for value in do_bench(call, warmup=100, rep=500, quantiles=[0.5, 0.2, 0.8])]

    def peak_mb(self, call: Callable[[], object]) -> float:
        """The most device memory a call holds above what is held before it, in MB (10^6 bytes)."""
        if self.smoke:
            call()
            return 0.0
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return round((torch.cuda.max_memory_allocated() - before) / 1e6, 1)


def fits(call: Callable[[], object]) -> bool:
    """Whether a call ends without running out of device memory; gives back what it held."""
    try:
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        return False
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return True


def largest(fits_at: Callable[[int], bool], first: int, cap: int) -> int:
    """The largest size `first * 2**k * (4..7)/4` up to `cap` that fits; 0 if `first` does not."""
    if not fits_at(first):
        return 0
    low = first
    while 2 * low <= cap and fits_at(2 * low):
        low *= 2
    best = low
    for step in (low // 2, low // 4):
        if step and best + step <= cap and fits_at(best + step):
            best += step
    return best
