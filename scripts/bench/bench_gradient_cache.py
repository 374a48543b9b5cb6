"""Peak memory of a training step of NeuralSparseLoss, encoded whole and in mini-batches, by batch size.

    python scripts/bench/bench_gradient_cache.py --model ../shared/models/splade-tiny --texts corpus.jsonl

Each measurement is one step of the preset `plain` (forward and backward, no optimizer) on pairs of texts with
a fused head, in a process of its own. Where a batch is encoded both ways the losses must agree. `vectors_mb`
is the size of the sparse vectors of both columns, which no way of encoding can save. Rows go to
results/gradient_cache.csv; they hold no times, so the machine need not be quiet.
"""

from __future__ import annotations

from typing import Any

import torch
import tyro
from common import append_rows, in_own_process, peak_mb, read_texts, reset_peak
from stock_splade import stock_encoder

from lexforge.losses import NeuralSparseLoss
from lexforge.models import fuse_splade_head
from lexforge.models.structure import set_dropout
from lexforge.training import PRESETS

LENGTH = 64  # tokens per text
MINI_BATCH_SIZE = 32


def run(folder: str, texts: list[str], mini_batch_size: int | None) -> dict[str, Any]:
    """One step in a process of its own."""
    torch.manual_seed(0)
    model = fuse_splade_head(stock_encoder(folder, LENGTH)).train()
    model.similarity_fn_name = "dot"
    set_dropout(model, 0.0)  # so that both ways of encoding give one loss
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


def main(model: str, texts: str, rows: tuple[int, ...] = (32, 256, 2048), whole_up_to: int = 256) -> None:
    """Measure every batch size and append the rows.

    Args:
        model: Folder of a masked language model.
        texts: JSON lines with a field text.
        rows: Rows of two texts in a batch.
        whole_up_to: The largest batch that is also encoded whole.
    """
    some = read_texts(texts, 2 * max(rows))
    if len(some) < 2 * max(rows):
        raise ValueError(f"{max(rows)} rows need {2 * max(rows)} texts; {texts} holds {len(some)}")
    for count in rows:
        sizes = [MINI_BATCH_SIZE] + ([None] if count <= whole_up_to else [])
        found = [in_own_process(run, model, some[: 2 * count], size) for size in sizes]
        if any(abs(row["loss"] - found[0]["loss"]) > 1e-3 * abs(found[0]["loss"]) for row in found):
            raise RuntimeError(f"the losses of one batch differ: {[row['loss'] for row in found]}")
        append_rows("gradient_cache", found)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
