"""What the GPU SPLADE head should cost: operations, bytes, milliseconds and memory, for a shape and a card.

    python scripts/bench/roofline.py                                        # B 64, L 256, D 768 on an H100
    python scripts/bench/roofline.py --card A100 --V 250002 --B 16 --L 192 --active 250002
    python scripts/bench/roofline.py --measured scripts/bench/results/splade_head_gpu.csv

float32 weights under bf16 autocast, as `bench_splade_head_gpu.py` runs them. "Ideal" is the larger of the
operations at the card's peak and the bytes that must cross its memory once. "Expected" adds up the kernels:
each takes the longest of its products, memory and L2, and then its instructions (docs/gpu.md counts them).
"""

from __future__ import annotations

import argparse
import csv
from math import ceil, comb
from pathlib import Path
from typing import NamedTuple

from lexforge.kernels.splade_head.triton.kernels import BUCKET, GROUP_BYTES, LIST_BLOCK, segment_of


class Card(NamedTuple):
    """bf16 products in TFLOP/s; memory and L2 (slowest and fastest published) in TB/s; clock in GHz."""

    bf16: float
    memory: float
    l2: tuple[float, float]
    processors: int
    clock: float


CARDS = {
    "H100": Card(989, 3.35, (4.3, 5.6), 132, 1.755),
    "H200": Card(989, 4.8, (4.3, 5.6), 132, 1.755),
    "A100": Card(312, 2.04, (2.5, 4.0), 108, 1.41),
}
TILE_V, TILE_T, FILL = 128, 256, 1_000  # the forward's tile; clocks until the first operands have come
EPILOGUE = 490 * 2  # clocks of a tile: instructions of a warp x warps of a scheduler
PAIRS_STEP = 800 * 8  # grad_hidden: instructions for 64 pairs and 256 features, in 8 warps
ROW_STEP = 160 * 4  # grad_weight: instructions for one row, 16 terms and 128 features, in 4 warps
LIST_STEP, WAIT = 3_100, 700  # clocks of a block of terms that is sorted; of a load
SPARTON = "Sparton reports for its kernel up to 4.8x of eager PyTorch and a tenth of its memory"


class Kernel(NamedTuple):
    """What a kernel does at least: GFLOP, MB through memory, MB through L2, and ms of instructions."""

    name: str
    gflop: float = 0.0
    memory: float = 0.0
    l2: float = 0.0
    other: float = 0.0

    def ms(self, card: Card, l2: float) -> float:
        return max(self.gflop / card.bf16, self.memory / card.memory / 1e3, self.l2 / l2 / 1e3) + self.other


def passes(card: Card, V: int, D: int, B: int, L: int, active: int) -> dict[str, list[Kernel]]:
    """The kernels of the forward and of the backward pass, for rows of equal length."""
    issued = card.processors * 4 * card.clock * 1e6  # instructions of all warps in one ms
    per_ms, segment = card.clock * 1e6, segment_of(L)
    states, weights, pairs = B * L * D / 1e6, V * D / 1e6, B * V / 1e6  # millions of numbers
    slots = B * ceil(L / segment) * segment
    tiles = ceil(V / TILE_V) * ceil(slots / TILE_T)
    groups = ceil(B / max(1, GROUP_BYTES // (L * D * 2)))
    gathered, buckets = B * active * D / 1e6, ceil(L / BUCKET)
    chances = [comb(B, k) * (active / V) ** k * (1 - active / V) ** (B - k) for k in range(B + 1)]
    # the most rows in which one of 16 terms is active, on average
    rows = sum(1 - sum(chances[: n + 1]) ** 16 for n in range(B))
    cast_states, cast_weight = Kernel("cast", memory=6 * states), Kernel("cast", memory=6 * weights)
    listed = 2 * ceil(B * ceil(V / LIST_BLOCK) / (4 * card.processors)) * LIST_STEP / per_ms
    for_hidden = B * ceil(D / 256) * (active / 64 + buckets / 2) * PAIRS_STEP / issued
    for_weight = ceil(V / 16) * ceil(D / 128) * rows * ROW_STEP / issued
    once = 2 * weights * groups + 2 * states + 6 * pairs
    operands = tiles * (TILE_V + TILE_T) * D * 2 / 1e6
    waits = tiles / card.processors * (FILL + EPILOGUE) / per_ms
    forward = Kernel("forward", 2e-9 * slots * V * D, once, operands, waits)
    backward = [
        Kernel("terms_by_token", 0, 4 * pairs + 4e-6 * B * active, 0, listed),
        Kernel("grad_hidden", 2e-9 * B * active * BUCKET * D, 4 * states, 4 * gathered, for_hidden),
        cast_states,
        Kernel("rows_by_term", 0, 8 * pairs + 2e-6 * B * active, 0, B * WAIT / per_ms),
        Kernel("grad_weight", 0, 4 * weights, 2 * gathered, for_weight),
    ]
    return {"forward": [cast_states, cast_weight, forward], "backward": backward}


def summary(card: Card, V: int, D: int, B: int, L: int, active: int) -> dict[str, tuple[float, float, float]]:
    """Ideal, fastest and slowest expected ms of each pass."""
    floats = B * L * D + V * D  # read once in bf16 forward
    # float32 states and the weights of active terms are read, and both gradients are written
    moved = 8 * B * L * D + 4 * V * D + 4 * active * D
    ideal = {
        "forward": max(2e-9 * B * L * V * D / card.bf16, 1e-9 * (2 * floats + 6 * B * V) / card.memory),
        "backward": max(4e-9 * B * active * D / card.bf16, 1e-9 * (moved + 10 * B * V) / card.memory),
    }
    times = {
        name: [sum(step.ms(card, l2) for step in steps) for l2 in card.l2]
        for name, steps in passes(card, V, D, B, L, active).items()
    }
    return {name: (ideal[name], min(both), max(both)) for name, both in times.items()}


def print_expected(name: str, V: int, D: int, B: int, L: int, active: int) -> None:
    """A line for each kernel and each pass, and the peak memory."""
    print(f"{name}: V {V:,}, D {D}, B {B}, L {L}, {active:,} active terms per row; {SPARTON}")
    for steps, (label, times) in zip(
        passes(CARDS[name], V, D, B, L, active).values(),
        summary(CARDS[name], V, D, B, L, active).items(),
        strict=True,
    ):
        for step in steps:
            slow, fast = (step.ms(CARDS[name], l2) for l2 in CARDS[name].l2)
            moved = f"{step.memory:6,.0f} MB, {step.l2:6,.0f} MB in L2"
            print(f"  {step.name:14} {step.gflop:6,.0f} GFLOP, {moved}: {fast:.2f} to {slow:.2f} ms")
        print("| {}: ideal {:.2f} ms, expected {:.2f} to {:.2f} ms".format(label, *times))
    # Each pair of row and term takes 14 bytes: for its result, its winner, its incoming gradient, and its
    # place in the list of the backward pass. Added to this are the float32 gradients of the states and of the
    # weight, and a copy in half precision of the larger one.
    peak = B * V * 14 + 4 * D * (B * L + V) + 2 * D * max(V, B * L)
    print(f"| peak above the inputs: {peak / 1e6:,.0f} MB; eager PyTorch: {B * L * V * 14 / 1e6:,.0f} MB")


def print_measured(path: Path) -> None:
    """The rows of the head that were measured last, each beside what it should take."""
    with path.open(encoding="utf-8", newline="") as stream:
        measured = list(csv.DictReader(stream))
    for row in measured:
        name = next((name for name in CARDS if name in row["device"]), None)
        if row["impl"] != "triton" or row["commit"] != measured[-1]["commit"] or name is None:
            continue
        V, D, B, L = (int(row[key]) for key in ("V", "D", "B", "L"))
        active = V if row["active"] == "all" else int(row["active"])
        forward, step = float(row["forward_ms"]), float(row["step_ms"])
        found = summary(CARDS[name], V, D, B, L, active)
        for ms, (label, (ideal, fast, slow)) in zip((forward, step - forward), found.items(), strict=True):
            shape = f"V {V} D {D} B {B} L {L} active {active}"
            ratio, expected = f"{ms / ideal:.1f} x ideal", f"expected {fast:.2f} to {slow:.2f}"
            print(f"| {shape} {label}: {ms:.2f} ms = {ratio}, {expected}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--card", choices=CARDS, default="H100")
    for key, default in (("V", 30_522), ("D", 768), ("B", 64), ("L", 256), ("active", 1_700)):
        parser.add_argument(f"--{key}", type=int, default=default)
    parser.add_argument("--measured", type=Path, help="the CSV of bench_splade_head_gpu.py")
    args = parser.parse_args()
    if args.measured:
        print_measured(args.measured)
    else:
        print_expected(args.card, args.V, args.D, args.B, args.L, args.active)


if __name__ == "__main__":
    main()
