"""Peak memory of a training step of NeuralSparseLoss, encoded whole and in mini-batches, by batch size.

    python scripts/bench/bench_gradient_cache.py --model ../shared/models/splade-tiny --texts corpus.jsonl

Each measurement is one step of the preset `plain` (forward and backward, no optimizer) on pairs of texts with
a fused head, in a process of its own. Where a batch is encoded both ways the losses must agree. `vectors_mb`
is the size of the sparse vectors of both columns, which no way of encoding can save. Rows go to
results/gradient_cache.csv; they hold no times, so the machine need not be quiet.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from common import append_rows, in_own_process, peak_mb, reset_peak
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

from lexforge.losses import NeuralSparseLoss
from lexforge.models import fuse_splade_head
from lexforge.training import PRESETS


def run(model_folder: str, texts: list[str], length: int, mini_batch_size: int | None) -> dict[str, Any]:
    """One step in a process of its own."""
    torch.manual_seed(0)
    transformer = Transformer(model_folder, transformer_task="fill-mask", max_seq_length=length)
    model = fuse_splade_head(
        SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu", similarity_fn_name="dot")
    ).train()
    for module in model.modules():  # Without dropout, so that both ways of encoding give one loss.
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    loss = NeuralSparseLoss(model, **PRESETS["plain"].loss.arguments(), mini_batch_size=mini_batch_size)
    rows = len(texts) // 2
    columns = [model.preprocess(texts[:rows]), model.preprocess(texts[rows:])]
    before = reset_peak()
    total = torch.stack(list(loss(columns).values())).sum()
    total.backward()
    return {
        "rows": rows,
        "columns": 2,
        "padded_tokens": max(column["input_ids"].shape[1] for column in columns),
        "mini_batch_size": mini_batch_size or rows,
        "encoded": "whole" if mini_batch_size is None else "in mini-batches",
        "loss": round(total.item(), 4),
        "vectors_mb": round(2 * rows * len(model.tokenizer) * 4 / 1e6, 1),
        "peak_mb": round(peak_mb() - before, 1),
    }


def main() -> None:
    """Measure every batch size and append the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of a masked language model")
    parser.add_argument("--texts", required=True, help="JSON lines with a field text")
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 256, 2048])
    parser.add_argument(
        "--whole-up-to", type=int, default=256, help="largest batch that is also encoded whole"
    )
    parser.add_argument("--mini-batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=64, help="tokens per text")
    args = parser.parse_args()
    with Path(args.texts).open(encoding="utf-8") as stream:
        lines = zip(stream, range(2 * max(args.rows)), strict=False)
        texts = [json.loads(line)["text"] for line, _ in lines]
    for rows in args.rows:
        if len(texts) < 2 * rows:
            raise ValueError(f"{rows} rows need {2 * rows} texts; {args.texts} holds {len(texts)}")
        sizes = [args.mini_batch_size] + ([None] if rows <= args.whole_up_to else [])
        found = [in_own_process(run, args.model, texts[: 2 * rows], args.length, size) for size in sizes]
        if any(abs(row["loss"] - found[0]["loss"]) > 1e-3 * abs(found[0]["loss"]) for row in found):
            raise RuntimeError(f"the losses of one batch differ: {[row['loss'] for row in found]}")
        append_rows("gradient_cache", found)


if __name__ == "__main__":
    main()
