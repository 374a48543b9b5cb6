"""Time and peak memory of a training step, plain and fused: two columns, SPLADE loss, backward, AdamW.

    python scripts/bench/bench_train_step.py --model ../shared/models/splade-tiny --texts corpus.jsonl

Both models start from the same weights and take the same batch; the losses of the first step are compared.
Rows go to results/train_step.csv.
"""

from __future__ import annotations

from typing import Any

import torch
import tyro
from common import append_rows, in_own_process, measure, read_texts
from stock_splade import stock_encoder, stock_loss

from lexforge.models import fuse_splade_head


def run(fused: bool, folder: str, texts: list[str], length: int, repeats: int) -> dict[str, Any]:
    """One kind of model in a process of its own."""
    torch.manual_seed(0)
    model = stock_encoder(folder, length)
    if fused:
        fuse_splade_head(model)
    model.train()
    loss = stock_loss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)  # the same step each time
    columns = [model.preprocess(texts[: len(texts) // 2]), model.preprocess(texts[len(texts) // 2 :])]
    losses: list[float] = []

    def step() -> None:
        optimizer.zero_grad()
        total = torch.stack(list(loss([dict(column) for column in columns], None).values())).sum()
        total.backward()
        optimizer.step()
        losses.append(total.item())

    model[0].eval()  # without dropout, so that the first losses of both models can be compared
    step()
    model[0].train()
    return {
        "rows": len(texts) // 2,
        "columns": 2,
        "tokens": sum(int(column["attention_mask"].sum()) for column in columns),
        "padded_tokens": sum(column["attention_mask"].numel() for column in columns),
        "impl": "fused" if fused else "sentence-transformers",
        "first_loss": round(losses[0], 4),
        **measure(step, repeats),
    }


def main(model: str, texts: str, rows: int = 32, length: int = 128, repeats: int = 5) -> None:
    """Run both models and append their rows.

    Args:
        model: Folder of a masked language model.
        texts: JSON lines with a field text.
        rows: Rows of two texts in a batch.
        length: Tokens per text.
        repeats: Steps that are timed.
    """
    some = read_texts(texts, 2 * rows)
    found = [in_own_process(run, fused, model, some, length, repeats) for fused in (True, False)]
    if abs(found[0]["first_loss"] - found[1]["first_loss"]) > 1e-3 * abs(found[1]["first_loss"]):
        raise RuntimeError(f"the losses of the first step differ: {[row['first_loss'] for row in found]}")
    append_rows("train_step", found)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
