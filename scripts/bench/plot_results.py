"""Draw the recorded rows: time and memory beside sentence-transformers, sparse searches, rank against FLOPS.

    python scripts/bench/plot_results.py

Reads results/splade_head.csv, train_step.csv and encode.csv (the last row of each setting) and writes
docs/images/benchmarks.png with every setting, and docs/images/overview.png, the README's picture, with four.
docs/images/retrieval.png has queries per second against recall, from the rows of k = 10 in results/index.csv.
docs/images/fronts.png has nDCG@10 on dev against FLOPS, from results/presets.csv, seeds averaged.
"""

from __future__ import annotations

import csv
import statistics
import textwrap
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from common import RESULTS

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
PEER, OURS = "sentence-transformers", "lexforge"
COLOURS = {PEER: "#b8bcc6", OURS: "#2f6fb0"}
PROCESSOR = "AMD EPYC"  # of the bars: the ratio of two packages differs from one kind to the next
Row = dict[str, str]
# The settings of the README's picture, in its order and words.
OVERVIEW = {
    "train_step": "one training step of\na small SPLADE model",
    "encode": "encoding 512 texts with\na small SPLADE model",
    "d768 typical": "SPLADE head,\n30,522 terms, width 768",
    "v250k typical": "SPLADE head,\n250,002 terms, width 768",
}

RIVAL = "--learning-rate 3e-4 --negatives mined --negatives-per-row 3"
# Of each system the flags of its points, in the order in which they are joined, with a word for each.
FRONTS = {
    ("plain", "rival, by its weight of FLOPS"): {
        RIVAL: "3e-4",
        f"{RIVAL} --loss.flops-weight 3e-3": "3e-3",
        f"{RIVAL} --loss.flops-weight 1e-2": "1e-2",
    },
    ("lexforge", "lexforge, by the share of the start"): {
        "--finish.start-share 0.25": ".25",
        "": ".35",
        "--finish.start-share 0.45": ".45",
    },
}


class Setting(NamedTuple):
    """One setting that both packages were measured at."""

    key: str
    label: str
    peer: Row
    ours: Row


def last_rows(name: str, *keys: str, measured: str = "peak_mb") -> dict[tuple[str, ...], Row]:
    """The last row of a results file for each combination of `keys`, where a column is not empty."""
    with (RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row[measured]]
    return {tuple(row[key] for key in keys): row for row in rows}


def read_settings() -> list[Setting]:
    """Each setting with a label, the peer's row and ours of the newest run that measured both."""
    rows = last_rows("splade_head", "case", "density", "tokens", "pass", "device", "commit", "impl")
    heads: dict[tuple[str, ...], tuple[Row, Row]] = {}
    for (*measured, impl), ours in rows.items():
        peer = rows.get((*measured, PEER))
        if impl == "tiled" and peer is not None and PROCESSOR in ours["device"]:
            heads[tuple(measured[:4])] = ours, peer
    found = []
    for (case, density, _, which), (ours, peer) in sorted(heads.items(), key=lambda head: head[0]):
        if which == "forward + backward":
            size = f"V {int(ours['terms']):,}, D {ours['width']}"
            full = int(ours["tokens"]) / int(ours["padded_tokens"])
            active = f"{float(ours['active_per_row']):,.0f} active per row"
            padding = f", {1 - full:.0%} padding" if full < 1 else ""
            found.append(Setting(f"{case} {density}", f"head, {size}\n{active}{padding}", peer, ours))
    steps = last_rows("train_step", "impl")
    label = "training step\nsplade-tiny"
    found.append(Setting("train_step", label, steps[(PEER,)], steps[("fused",)]))
    theirs = last_rows("encode", "model", "impl")["splade-tiny", PEER]
    # Ours of the same texts.
    ours = last_rows("encode", "model", "tokens", "impl")["splade-tiny", theirs["tokens"], OURS]
    found.append(Setting("encode", f"encode {ours['documents']} texts\nsplade-tiny", theirs, ours))
    return found


def draw_bars(axis: plt.Axes, rows: list[Setting], column: str, title: str, number: str, size: int) -> None:
    """Horizontal pairs of bars, the peer's above ours, with the ratio at the end."""
    for place, row in enumerate(rows):
        theirs, mine = float(row.peer[column]), max(float(row.ours[column]), 1e-9)
        axis.barh(place - 0.2, theirs, 0.38, color=COLOURS[PEER])
        axis.barh(place + 0.2, mine, 0.38, color=COLOURS[OURS])
        axis.text(theirs, place - 0.2, f" {theirs:{number}}", va="center", fontsize=size, color="#555")
        axis.text(mine, place + 0.2, f" {mine:{number}}  ({theirs / mine:.1f}x)", va="center", fontsize=size)
    axis.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=size)
    axis.set_title(f"{title}, less is better", fontsize=size + 2, loc="left")
    axis.margins(x=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def draw_picture(rows: list[Setting], name: str, height: float, size: int) -> None:
    """Write one picture: time on the left, memory on the right."""
    figure, axes = plt.subplots(1, 2, figsize=(11, height), sharey=True)
    axes[0].invert_yaxis()  # shared by both
    draw_bars(axes[0], rows, "median_s", "Time (s)", ".2f", size)
    draw_bars(axes[1], rows, "peak_mb", "Peak memory above start (MB)", ",.0f", size)
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[each]) for each in (PEER, OURS)]
    devices = " and ".join(sorted({row.ours["device"] for row in rows}))
    title = f"float32 on {devices}, medians; the head is measured forward and backward"
    title = textwrap.fill(title, 130)
    figure.legend(
        handles, [PEER, OURS], loc="lower center", ncols=2, frameon=False, fontsize=size + 1, title=title
    )
    figure.tight_layout(rect=(0, 0.7 / height, 1, 1))
    figure.savefig(IMAGES / name, dpi=130)
    plt.close(figure)
    print(name)


def draw_searches(axis: plt.Axes, rows: list[Row], names: list[str]) -> None:
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


def draw_retrieval() -> None:
    """Write the picture of the searches, one panel a corpus size with approximate searches."""
    found = last_rows("index", "search", "setting", "documents", "k", measured="recall")
    rows = [row for row in found.values() if row["k"] == "10"]
    names = list(dict.fromkeys(row["search"] for row in rows))
    sizes = sorted({int(row["documents"]) for row in rows if float(row["recall"]) < 1})
    rows_of_panels = -(-len(sizes) // 2)
    figure, axes = plt.subplots(rows_of_panels, 2, figsize=(11, 4 * rows_of_panels), squeeze=False)
    for axis, size in zip(axes.flat, sizes, strict=False):
        draw_searches(axis, [row for row in rows if int(row["documents"]) == size], names)
    for axis in axes.flat[len(sizes) :]:
        axis.axis("off")
    axes[0][0].legend(fontsize=8, frameon=False, loc="lower left")
    figure.suptitle(rows[-1]["device"], fontsize=9, x=0.01, ha="left")
    figure.tight_layout()
    figure.savefig(IMAGES / "retrieval.png", dpi=130)
    plt.close(figure)
    print("retrieval.png")


def draw_fronts() -> None:
    """Write the picture of nDCG@10 against FLOPS, one panel a collection."""
    rows = last_rows("presets", "system", "flags", "model", "set", "split", "seed", measured="flops").values()
    rows = [row for row in rows if row["model"] == "splade-tiny" and row["split"] == "dev"]
    figure, axes = plt.subplots(2, 2, figsize=(11, 7))
    for axis, name in zip(axes.flat, ("medquad", "scifact", "nfcorpus-lc", "newwiki"), strict=True):
        for place, ((system, label), words) in enumerate(FRONTS.items()):
            points = []
            for flags in words:
                wanted = (system, flags, name)
                own = [row for row in rows if (row["system"], row["flags"], row["set"]) == wanted]
                points.append(
                    [statistics.mean(float(row[key]) for row in own) for key in ("flops", "nDCG@10")]
                )
            marks = {"marker": "so"[place], "color": ("#8a8f9c", COLOURS[OURS])[place]}
            axis.plot(*zip(*points, strict=True), label=label, **marks)
            for point, word in zip(points, words.values(), strict=True):
                above_or_below = (0, (8, -14)[place])
                axis.annotate(
                    word, point, above_or_below, textcoords="offset points", fontsize=8, ha="center"
                )
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlabel("FLOPS")
        axis.set_ylabel("nDCG@10")
        axis.set_title(f"{name}, dev", fontsize=10, loc="left")
        axis.margins(0.15, 0.2)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][1].legend(fontsize=8, frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(IMAGES / "fronts.png", dpi=110)
    plt.close(figure)
    print("fronts.png")


def main() -> None:
    """Write the four pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    rows = read_settings()
    draw_picture(rows, "benchmarks.png", 0.62 * len(rows) + 1.3, 8)
    # Two rows of the head can differ in padding alone; the README's picture has the one without.
    unpadded = {row.key: row for row in rows if "padding" not in row.label}
    overview = [unpadded[key]._replace(label=label) for key, label in OVERVIEW.items()]
    draw_picture(overview, "overview.png", 4.2, 10)
    draw_retrieval()
    draw_fronts()


if __name__ == "__main__":
    main()
