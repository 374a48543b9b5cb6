"""Documents a second of `SparseEncoder.encode`, plain and fused, and their largest difference.

    python scripts/bench/bench_encode.py --model ../shared/models/splade-tiny --texts corpus.jsonl

Rows go to results/encode.csv.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common import append_rows, in_own_process, measure
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

from lexforge.models import fuse_splade_head

EDGE_TEXTS = ["", "a", "한국어 문서를 검색합니다", "ordinary ASCII text", "very long text " * 400]


def encoder(folder: str, length: int) -> SparseEncoder:
    """A plain model."""
    transformer = Transformer(folder, transformer_task="fill-mask", max_seq_length=length)
    return SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")


def run(
    fused: bool, folder: str, texts: list[str], length: int, batch_size: int, repeats: int
) -> dict[str, Any]:
    """One kind of model in a process of its own."""
    model = encoder(folder, length)
    difference = 0.0
    if fused:
        expected = model.encode(EDGE_TEXTS + texts[:64]).to_dense()
        fuse_splade_head(model)
        received = model.encode(EDGE_TEXTS + texts[:64]).to_dense()
        difference = float((received - expected).abs().max())
        if difference > 1e-5:
            raise RuntimeError(f"fused and plain vectors differ by {difference}")
    tokens = sum(len(ids) for ids in model.tokenizer(texts, truncation=True, max_length=length)["input_ids"])
    times = measure(lambda: model.encode(texts, batch_size=batch_size, show_progress_bar=False), repeats)
    return {
        "documents": len(texts),
        "tokens": tokens,
        "batch_size": batch_size,
        "impl": "fused" if fused else "sentence-transformers",
        "largest_difference": f"{difference:.1e}",
        "documents_per_s": round(len(texts) / times["median_s"], 1),
        **times,
    }


def main() -> None:
    """Run both models and append their rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of a masked language model")
    parser.add_argument("--texts", required=True, help="JSON lines with a field text")
    parser.add_argument("--documents", type=int, default=512)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with Path(args.texts).open(encoding="utf-8") as stream:
        texts = [json.loads(line)["text"] for line, _ in zip(stream, range(args.documents), strict=False)]
    options = (args.model, texts, args.length, args.batch_size, args.repeats)
    append_rows("encode", [in_own_process(run, fused, *options) for fused in (True, False)])


if __name__ == "__main__":
    main()
