"""Time and peak memory of a training step, plain and fused: two columns, SPLADE loss, backward, AdamW.

    python scripts/bench/bench_train_step.py --model ../shared/models/splade-tiny --texts corpus.jsonl

Both models start from the same weights and take the same batch; the losses of the first step are compared.
Rows go to results/train_step.csv.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from common import append_rows, in_own_process, measure
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

from lexforge.models import fuse_splade_head


def run(fused: bool, model_folder: str, texts: list[str], length: int, repeats: int) -> dict[str, Any]:
    """One kind of model in a process of its own."""
    torch.manual_seed(0)
    transformer = Transformer(model_folder, transformer_task="fill-mask", max_seq_length=length)
    model = SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")
    if fused:
        fuse_splade_head(model)
    model.train()
    loss = SpladeLoss(
        model,
        SparseMultipleNegativesRankingLoss(model),
        document_regularizer_weight=3e-4,
        query_regularizer_weight=3e-4,
    )
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


def main() -> None:
    """Run both models and append their rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of a masked language model")
    parser.add_argument("--texts", required=True, help="JSON lines with a field text")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with Path(args.texts).open(encoding="utf-8") as stream:
        texts = [json.loads(line)["text"] for line, _ in zip(stream, range(2 * args.rows), strict=False)]
    rows = [
        in_own_process(run, fused, args.model, texts, args.length, args.repeats) for fused in (True, False)
    ]
    if abs(rows[0]["first_loss"] - rows[1]["first_loss"]) > 1e-3 * abs(rows[1]["first_loss"]):
        raise RuntimeError(f"the losses of the first step differ: {[row['first_loss'] for row in rows]}")
    append_rows("train_step", rows)


if __name__ == "__main__":
    main()
