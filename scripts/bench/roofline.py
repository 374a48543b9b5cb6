"""What the GPU SPLADE head should cost: operations, bytes, milliseconds and peak memory, for a shape and a card.

    python scripts/bench/roofline.py                                        # B 64, L 256, D 768 on an H100
    python scripts/bench/roofline.py --card A100 --V 250002 --B 16 --L 192 --active 250002
    python scripts/bench/roofline.py --measured scripts/bench/results/splade_head_gpu.csv

float32 weights under bf16 autocast, as `bench_splade_head_gpu.py` runs them. "Ideal" is the larger of the
operations at the card's peak and the bytes that must cross its memory once. "Expected" adds up the kernels:
each takes its longest of products, memory, L2 and instructions; L2 has a range, because published measurements
have one. Instructions are those that `tests/kernels/triton/compile_kernels.py` prints; docs/gpu.md explains.
"""

from __future__ import annotations

import argparse
import csv
from math import ceil
from pathlib import Path
from typing import NamedTuple


class Card(NamedTuple):
    """Peaks of a card: products in TFLOP/s (bf16, dense), memory and L2 in TB/s, clock in GHz."""

    bf16: float
    memory: float
    l2: tuple[float, float]  # slowest and fastest
    processors: int
    clock: float


CARDS = {
    "H100": Card(989, 3.35, (4.3, 5.6), 132, 1.755),
    "H200": Card(989, 4.8, (4.3, 5.6), 132, 1.755),
    "A100": Card(312, 2.04, (2.5, 4.0), 108, 1.41),
}
SPARTON = "Sparton reports up to 4.8x for its kernel with a tenth of the memory (eager PyTorch: 1x)"
TILE_V, TILE_T = 128, 256  # the forward's tile of products, 8 warps
FILL = 1_000  # clocks until the first tiles of a product have come
FORWARD_EPILOGUE = 490 * 2 * 2  # instructions of a tile x warps per scheduler x clocks per comparison
ROW_STEP = 150 * 4  # grad_weight: instructions for one row, 16 terms and 128 features, in 4 warps
LIST_STEP, LIST_TERMS = 4_400, 2_048  # active_terms: clocks for one block of terms, which wait for each other


class Kernel(NamedTuple):
    """What a kernel does at least: GFLOP, MB through memory, MB through L2, and ms of everything else."""

    name: str
    gflop: float
    memory: float
    l2: float
    other: float

    def ms(self, card: Card, l2: float) -> float:
        return max(self.gflop / card.bf16, self.memory / card.memory / 1e3, self.l2 / l2 / 1e3) + self.other


def kernels(card: Card, V: int, D: int, B: int, L: int, active: int) -> tuple[list[Kernel], list[Kernel]]:
    """The kernels of the forward and of the backward pass."""
    issue = card.processors * 4 * card.clock * 1e6  # instructions of a warp in one ms
    tile_t = max(16, min(TILE_T, 2 ** (L - 1).bit_length()))
    tiles = ceil(V / TILE_V) * B * ceil(L / tile_t)
    states, weights, pairs = B * L * D / 1e6, V * D / 1e6, B * V / 1e6  # millions of numbers
    cast_states, cast_weights = (Kernel("cast", 0, 6 * size, 0, 0) for size in (states, weights))
    waves = tiles / card.processors / (card.clock * 1e6)
    read_states = 1 if states * 2 < 25 else ceil(V / TILE_V)  # times that the states come from memory
    forward = Kernel(
        "forward",
        2 * B * ceil(L / tile_t) * tile_t * V * D / 1e9,
        2 * weights + 2 * states * read_states + 6 * pairs,
        tiles * (TILE_V + tile_t) * D * 2 / 1e6,
        waves * (FILL + FORWARD_EPILOGUE * tile_t / TILE_T),
    )
    density = active / V
    listed = Kernel("active_terms", 0, 8 * pairs, 0, ceil(V / LIST_TERMS) * LIST_STEP / card.clock / 1e6)
    gathered = B * active * D * 2 / 1e6
    grad_hidden = Kernel(
        "grad_hidden", 2 * B * active * L * D / 1e9, 4 * states, gathered * ceil(L / tile_t), 0
    )
    live = 1 - (1 - density) ** (4 * 16)  # blocks of 4 rows and 16 terms with an active pair
    steps = B * ceil(V / 16) * ceil(D / 128)
    grad_weight = Kernel(
        "grad_weight", 0, 4 * weights + 4 * pairs, gathered, live * steps * ROW_STEP / issue
    )
    grad_bias = Kernel("grad_bias", 0, 8 * pairs, 0, B * 700 / card.clock / 1e6)
    return [cast_states, cast_weights, forward], [
        cast_weights, listed, grad_hidden, cast_states, grad_weight, grad_bias,
    ]  # fmt: skip


def peak_mb(V: int, D: int, B: int, L: int) -> float:
    """Above the inputs: result, winners, the gradient that comes in, both gradients, one cast, one list."""
    pairs = B * V * (4 + 2 + 4 + 4)
    return (pairs + 4 * B * L * D + 4 * V * D + 2 * max(V * D, B * L * D)) / 1e6


def summary(card: Card, V: int, D: int, B: int, L: int, active: int) -> dict[str, tuple[float, float, float]]:
    """Ideal, fastest and slowest expected ms of each pass."""
    found = {}
    passes = kernels(card, V, D, B, L, active)
    floats = B * L * D + V * D  # read once in bf16 forward; read, and written in float32, backward
    least = ((2 * B * L * V * D, 2 * floats + 6 * B * V), (4 * B * active * D, 6 * floats + 10 * B * V))
    for name, steps, (flop, moved) in zip(("forward", "backward"), passes, least, strict=True):
        ideal = max(flop / card.bf16 / 1e9, moved / card.memory / 1e9)
        slow, fast = (sum(step.ms(card, l2) for step in steps) for l2 in card.l2)
        found[name] = ideal, fast, slow
    return found


def print_expected(name: str, V: int, D: int, B: int, L: int, active: int) -> None:
    """A line for each kernel and each pass."""
    card, shape = CARDS[name], (V, D, B, L, active)
    print(f"{name}: V {V:,}, D {D}, B {B}, L {L}, {active:,} active terms per row; {SPARTON}")
    for of_pass, (label, (ideal, fast, slow)) in zip(
        kernels(card, *shape), summary(card, *shape).items(), strict=True
    ):
        for step in of_pass:
            times = sorted(step.ms(card, l2) for l2 in card.l2)
            print(f"  {step.name:13} {step.gflop:8,.0f} GFLOP {step.memory:7,.0f} MB {step.l2:8,.0f} MB of L2 "
                  f"{times[0]:7.2f} to {times[1]:.2f} ms")  # fmt: skip
        print(f"| {label}: ideal {ideal:.2f} ms, expected {fast:.2f} to {slow:.2f} ms")
    print(f"| peak above the inputs: {peak_mb(V, D, B, L):,.0f} MB")


def print_measured(path: Path) -> None:
    """Each measured row of the head beside what it should take."""
    for row in csv.DictReader(path.open(encoding="utf-8", newline="")):
        name = next((name for name in CARDS if name in row["device"]), None)
        if row["impl"] != "triton" or name is None:
            continue
        V, D, B, L = (int(row[key]) for key in "VDBL")
        active = V if row["active"] == "all" else int(row["active"])
        measured = float(row["forward_ms"]), float(row["step_ms"]) - float(row["forward_ms"])
        found = summary(CARDS[name], V, D, B, L, active)
        print(f"| V {V} D {D} B {B} L {L} active {active} " + "; ".join(
            f"{label} {ms:.2f} ms = {ms / ideal:.1f} x ideal, expected {fast:.2f} to {slow:.2f}"
            for ms, (label, (ideal, fast, slow)) in zip(measured, found.items(), strict=True)
        ))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
