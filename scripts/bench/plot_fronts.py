"""Draw rank against the cost of a search: the fronts of `lexforge` and of `plain`, one panel per collection.

    python scripts/bench/plot_fronts.py

Reads the rows of dev with seed 1 in results/presets.csv: `lexforge` by default and with wanted numbers of
terms, and `plain` at the same learning rate, with mined negatives and several weights of FLOPS. Writes
docs/images/fronts.png.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from common import RESULTS

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
RIVAL = "--learning-rate 3e-4 --negatives mined"
SYSTEMS = {  # system -> colour, its settings, and what a setting is called
    "plain": ("#8a8f9c", f"{RIVAL} --loss.flops-weight ", "weight "),
    "lexforge": ("#2f6fb0", "--document-terms ", ""),
}
DEFAULT = {"plain": RIVAL, "lexforge": ""}
NAMES = {"plain": "weight 3e-4", "lexforge": "default"}
Row = dict[str, str]


def rows_of(rows: list[Row], collection: str, system: str) -> list[tuple[str, Row]]:
    """The rows of a system on a collection by the name of their setting, by FLOPS."""
    _, prefix, word = SYSTEMS[system]
    found = []
    for row in rows:
        if (row["set"], row["system"]) != (collection, system):
            continue
        if row["flags"] == DEFAULT[system]:
            found.append((NAMES[system], row))
        elif row["flags"].startswith(prefix):
            found.append((word + row["flags"].removeprefix(prefix), row))
    return sorted(found, key=lambda pair: float(pair[1]["flops"]))


def main() -> None:
    """Draw the panels."""
    with (RESULTS / "presets.csv").open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if (row["split"], row["seed"]) == ("dev", "1")]
    collections = list(dict.fromkeys(row["set"] for row in rows))
    figure, axes = plt.subplots(1, len(collections), figsize=(3.4 * len(collections), 3.2), dpi=140)
    for axis, collection in zip(axes, collections, strict=True):
        for system, (colour, _, _) in SYSTEMS.items():
            found = rows_of(rows, collection, system)
            places = [(float(row["flops"]), float(row["nDCG@10"])) for _, row in found]
            axis.plot(*zip(*places, strict=True), "o-", color=colour, label=system, markersize=4)
            for (name, _), place in zip(found, places, strict=True):
                axis.annotate(
                    name, place, xytext=(3, -10), textcoords="offset points", fontsize=7, color=colour
                )
        bm25 = next(float(row["bm25_nDCG@10"]) for row in rows if row["set"] == collection)
        axis.axhline(bm25, ls=":", color="#b06a2f")
        axis.set_xscale("log")
        axis.set_title(collection, fontsize=10)
        axis.set_xlabel("FLOPS of a search", fontsize=8)
        axis.tick_params(labelsize=7)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[0].set_ylabel("nDCG@10 on dev", fontsize=8)
    axes[0].plot([], [], ":", color="#b06a2f", label="BM25")
    axes[0].legend(fontsize=8, frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(IMAGES / "fronts.png")


if __name__ == "__main__":
    main()
