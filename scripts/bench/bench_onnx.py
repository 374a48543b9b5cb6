"""Documents per second of a SPLADE encoder in PyTorch (fused head), and of its ONNX files in onnxruntime.

    python scripts/bench/bench_onnx.py --model ../shared/models/splade-tiny --texts corpus.jsonl

Each row is a process of its own, with the same texts in the same batches and the same number of threads. The
export compares its vectors with the encoder's before anything is timed. Rows go to results/onnx.csv.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from common import append_rows, in_own_process, measure

from lexforge.export import export_model
from lexforge.export.model_onnx import run_pooled
from lexforge.models import build_splade

IMPLEMENTATIONS = ("lexforge", "onnxruntime", "onnxruntime int8")


def run(
    impl: str, model: str, texts: list[str], length: int, batch_size: int, threads: int, repeats: int
) -> dict[str, Any]:
    """One implementation in a process of its own."""
    torch.set_num_threads(threads)
    ordered = sorted(texts, key=len, reverse=True)  # both sides pad little
    difference = 0.0
    with tempfile.TemporaryDirectory() as folder:
        if impl == "lexforge":
            encoder = build_splade(model, max_seq_length=length, device="cpu")

            def encode() -> None:
                options = {"convert_to_sparse_tensor": False, "show_progress_bar": False}
                for start in range(0, len(ordered), batch_size):
                    encoder.encode_document(ordered[start : start + batch_size], **options)
        else:
            quantize = "int8" if impl.endswith("int8") else None
            exported = export_model(
                model,
                "onnx",
                Path(folder) / "onnx",
                queries=texts[:16],
                documents=texts[:16],
                quantize=quantize,  # type: ignore[arg-type]
                max_seq_length=length,
            )
            difference = max(each.largest_difference for each in exported.agreements)
            vectors_of = run_pooled(exported.folder, threads)

            def encode() -> None:
                for start in range(0, len(ordered), batch_size):
                    vectors_of(ordered[start : start + batch_size])

        times = measure(encode, repeats)
    return {
        "model": Path(model).name,
        "documents": len(texts),
        "max_seq_length": length,
        "batch_size": batch_size,
        "threads": threads,
        "impl": impl,
        "largest_difference": f"{difference:.1e}",
        "documents_per_s": round(len(texts) / times["median_s"], 1),
        **times,
        "onnxruntime": version("onnxruntime"),
    }


def main() -> None:
    """Run all implementations and append their rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a SPLADE encoder or a masked language model")
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines with a field `text`")
    parser.add_argument("--limit", type=int, default=512, help="documents, from the start of the file")
    parser.add_argument("--length", type=int, default=128, help="tokens after which a text is cut")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with options.texts.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line, _ in zip(lines, range(options.limit), strict=False)]
    rows = []
    for impl in IMPLEMENTATIONS:
        sizes = (options.length, options.batch_size, options.threads, options.repeats)
        rows.append(in_own_process(run, impl, options.model, texts, *sizes))
    append_rows("onnx", rows)


if __name__ == "__main__":
    main()
