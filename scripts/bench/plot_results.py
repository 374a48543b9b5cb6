"""Draw the README's plot from the recorded rows: time and peak memory, sentence-transformers beside lexforge.

    python scripts/bench/plot_results.py

Reads results/splade_head.csv, train_step.csv and encode.csv (the last row of each setting) and writes
docs/benchmarks.png.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from common import RESULTS

OUTPUT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.png"
PEER, OURS = "sentence-transformers", "lexforge"
COLOURS = {PEER: "#b8bcc6", OURS: "#2f6fb0"}
Row = dict[str, str]


def last_rows(name: str, *keys: str) -> dict[tuple[str, ...], Row]:
    """The last row of a results file for each combination of `keys`."""
    with (RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        return {tuple(row[key] for key in keys): row for row in csv.DictReader(stream)}


def settings() -> list[tuple[str, Row, Row]]:
    """Each setting with a label, the peer's row and ours."""
    found = []
    heads = last_rows("splade_head", "case", "density", "tokens", "pass", "impl")
    for (*setting, which, impl), ours in heads.items():
        peer = heads.get((*setting, which, PEER))
        if impl == "tiled" and which == "forward + backward" and peer is not None:
            size = f"V {int(ours['terms']):,}, D {ours['width']}"
            full = int(ours["tokens"]) / int(ours["padded_tokens"])
            active = f"{float(ours['active_per_row']):,.0f} active a row"
            padding = f", {1 - full:.0%} padding" if full < 1 else ""
            found.append((f"head, {size}\n{active}{padding}", peer, ours))
    steps = last_rows("train_step", "impl")
    found.append(("training step\nsplade-tiny", steps[(PEER,)], steps[("fused",)]))
    encode = last_rows("encode", "impl")
    texts = encode[("fused",)]["documents"]
    found.append((f"encode {texts} texts\nsplade-tiny", encode[(PEER,)], encode[("fused",)]))
    return found


def draw(axis: plt.Axes, rows: list[tuple[str, Row, Row]], column: str, title: str, number: str) -> None:
    """Horizontal pairs of bars, the peer's above ours, with the ratio at the end."""
    for place, (_, peer, ours) in enumerate(rows):
        theirs, mine = float(peer[column]), max(float(ours[column]), 1e-9)
        axis.barh(place - 0.2, theirs, 0.38, color=COLOURS[PEER])
        axis.barh(place + 0.2, mine, 0.38, color=COLOURS[OURS])
        axis.text(theirs, place - 0.2, f" {theirs:{number}}", va="center", fontsize=8, color="#555")
        axis.text(mine, place + 0.2, f" {mine:{number}}  ({theirs / mine:.1f}x)", va="center", fontsize=8)
    axis.set_yticks(range(len(rows)), [label for label, _, _ in rows], fontsize=8)
    axis.set_title(f"{title}, less is better", fontsize=10, loc="left")
    axis.margins(x=0.22)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Write the plot."""
    rows = settings()
    figure, axes = plt.subplots(1, 2, figsize=(11, 0.62 * len(rows) + 1.3), sharey=True)
    axes[0].invert_yaxis()  # shared by both
    draw(axes[0], rows, "median_s", "Median time (s)", ".2f")
    draw(axes[1], rows, "peak_mb", "Peak memory above start (MB)", ",.0f")
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[name]) for name in (PEER, OURS)]
    figure.legend(handles, [PEER, OURS], loc="lower center", ncols=2, frameon=False, fontsize=9)
    device = rows[0][2]["device"]
    figure.suptitle(f"float32 on {device}; the head is forward + backward", fontsize=9, x=0.01, ha="left")
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    OUTPUT.parent.mkdir(exist_ok=True)
    figure.savefig(OUTPUT, dpi=130)
    print(OUTPUT.name)


if __name__ == "__main__":
    main()
