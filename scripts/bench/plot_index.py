"""Draw queries per second against recall of the sparse searches from the recorded rows.

    python scripts/bench/plot_index.py

Reads the rows of k = 10 in results/index.csv (the last of each setting) and writes docs/images/retrieval.png.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from common import RESULTS

OUTPUT = Path(__file__).resolve().parents[2] / "docs" / "images" / "retrieval.png"
OURS = "lexforge"
Row = dict[str, str]


def last_rows() -> list[Row]:
    """The last row of each search, setting and corpus."""
    with (RESULTS / "index.csv").open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["recall"] and row["k"] == "10"]
    return list({(row["search"], row["setting"], row["documents"]): row for row in rows}.values())


def draw(axis: plt.Axes, rows: list[Row], names: list[str]) -> None:
    """One mark a setting; the settings of one search are joined, in the colour of its place in `names`."""
    for place, search in enumerate(names):
        own = sorted((row for row in rows if row["search"] == search), key=lambda row: float(row["recall"]))
        recall = [float(row["recall"]) for row in own]
        speed = [float(row["queries_per_s"]) for row in own]
        ours = search.startswith(OURS)
        marks = {"marker": "o", "ms": 8} if ours else {"marker": "s", "ms": 5, "ls": "--"}
        axis.plot(recall, speed, color=f"C{place}", lw=1, label=search, **marks)
    first = rows[0]
    axis.set_yscale("log")
    axis.set_xlabel(f"recall@{first['k']} against exact search")
    axis.set_ylabel("queries per second")
    axis.set_title(f"{int(first['documents']):,} documents", fontsize=10, loc="left")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Write the plot, one panel a corpus size with approximate searches."""
    rows = last_rows()
    names = list(dict.fromkeys(row["search"] for row in rows))
    sizes = sorted({int(row["documents"]) for row in rows if float(row["recall"]) < 1})
    figure, axes = plt.subplots(1, len(sizes), figsize=(5.5 * len(sizes), 4), squeeze=False)
    for axis, size in zip(axes[0], sizes, strict=True):
        draw(axis, [row for row in rows if int(row["documents"]) == size], names)
    axes[0][0].legend(fontsize=8, frameon=False, loc="lower left")
    figure.suptitle(rows[-1]["device"], fontsize=9, x=0.01, ha="left")
    figure.tight_layout()
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUTPUT, dpi=130)
    print(OUTPUT.name)


if __name__ == "__main__":
    main()
