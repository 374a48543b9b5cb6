"""What the gate of `lexforge adapt` says of models that it did not make, beside the judged queries.

    python scripts/bench/bench_gate.py --data ../shared/data --start ../shared/models/splade-tiny \
        --sets cacm cranfield --models rival-of-scifact=runs/presets/DIR/scifact/plain-1/run/model ...

An adaptation that does harm is rare, so its gate is tried on other models here: those that `bench_presets.py`
trained on one collection, on the documents of another one. The queries that are held out are those that
`lexforge adapt` would hold out. Each of them and each judged query compares a model with the start, and one
row per collection and model goes to results/gate.csv. Set OMP_NUM_THREADS=1 to keep to one core.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import append_rows

from lexforge import adapt
from lexforge.commands import adapt as command
from lexforge.commands.index import read_library
from lexforge.models import load_encoder


def numbers(verdict: adapt.Verdict, name: str) -> dict[str, Any]:
    """The columns of a verdict: nDCG@10 of the start, and what the model adds to it with its interval."""
    compared = verdict.comparison
    low, high = compared.interval
    values = {"start": compared.first, "difference": compared.difference, "low": low, "high": high}
    return {f"{name}_{key}": round(value, 4) for key, value in values.items()}


def rows(
    data: Path, split: str, start: str, models: list[str], length: int, seed: int
) -> list[dict[str, Any]]:
    """Compare each model with the start on held-out queries of one collection, and on its judged ones."""
    cfg = command.Config(
        str(data), start, Path("unused"), judged=str(data), split=split, max_seq_length=length
    )
    cfg = replace(cfg, train=replace(cfg.train, seed=seed))
    encoder = load_encoder(start, length)
    library = read_library(cfg.documents, cfg.source, encoder)
    passages = command.sampled(library.passages, cfg.sample, seed)
    sets = command.take_queries(cfg, encoder, passages, {key: one.joined for key, one in passages.items()})
    before = adapt.measure(encoder, sets.evaluators)
    found = []
    for label, path in (model.split("=", 1) for model in models):
        after = adapt.measure(load_encoder(path, length), sets.evaluators)
        gate = adapt.judge({"held_out": before["held_out"]}, {"held_out": after["held_out"]})
        place: dict[str, Any] = {"set": data.name, "split": split, "start": Path(start).name, "model": label}
        place |= {"seed": seed, "held_out": gate.queries, "judged": len(sets.evaluators["judged"].query_ids)}
        found.append(place | numbers(gate, "gate") | numbers(adapt.judge(before, after), "truth"))
    return found


def main() -> None:
    """Compare what is asked for, and append the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, type=Path, help="folder of folders in BEIR layout")
    parser.add_argument("--start", required=True)
    parser.add_argument("--models", nargs="+", required=True, help="NAME=PATH; rows have the name")
    parser.add_argument("--sets", nargs="+", required=True)
    parser.add_argument("--split", default="test", help="judged queries")
    parser.add_argument("--length", type=int, default=128, help="tokens per text")
    parser.add_argument("--seed", type=int, default=1, help="of the queries that are held out")
    args = parser.parse_args()
    for name in args.sets:
        append_rows(
            "gate", rows(args.data / name, args.split, args.start, args.models, args.length, args.seed)
        )


if __name__ == "__main__":
    main()
