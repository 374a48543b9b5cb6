"""Documents per second of a SPLADE encoder in PyTorch (fused head), and of its ONNX files in onnxruntime.

    python scripts/bench/bench_onnx.py --model MODEL --data FOLDER

FOLDER is in BEIR layout. The first documents of its corpus are encoded: each row is a process of its own,
with the same texts in the same batches and the same number of threads. Then the whole corpus and the queries
of `--split` are encoded once by each, and searched exactly, which gives nDCG@10. The export compares its
vectors with the encoder's before anything is measured. Rows go to results/onnx.csv and
results/onnx_quality.csv.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from common import append_rows, in_own_process, measure

from lexforge.data import RetrievalData, load_retrieval_data
from lexforge.export import export_model
from lexforge.export.models.onnx import run_pooled
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


def measure_quality(model: str, data: RetrievalData, split: str, length: int) -> list[dict[str, Any]]:
    """NDCG@10 of the encoder and its exports over the whole corpus, and the speed of encoding it once."""
    queries, documents = list(data.split_queries(split).values()), list(data.corpus.values())
    with tempfile.TemporaryDirectory() as folder:
        exported = export_model(
            model,
            "onnx",
            Path(folder) / "onnx",
            queries=queries[:16],
            documents=documents[:16],
            quantize="int8",
            max_seq_length=length,
            measured_on=(data, split),
        )
    names = dict(zip(("encoder", "float32", "int8"), IMPLEMENTATIONS, strict=True))
    return [
        {
            "model": Path(model).name,
            "documents": len(documents),
            "queries": len(queries),
            "max_seq_length": length,
            "impl": names[name],
            "ndcg10": round(measures["nDCG@10"], 4),
            "documents_per_s": round(measures["documents_per_second"], 1),
        }
        for name, measures in exported.measures.items()
    ]


def main() -> None:
    """Run all implementations and append their rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a SPLADE encoder or a masked language model")
    parser.add_argument("--data", type=Path, required=True, help="a folder in BEIR layout")
    parser.add_argument("--split", default="test", help="whose queries are searched")
    parser.add_argument(
        "--limit", type=int, default=512, help="timed documents, from the start of the corpus"
    )
    parser.add_argument("--length", type=int, default=128, help="tokens after which a text is cut")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    data = load_retrieval_data(str(options.data), [options.split])
    texts = list(data.corpus.values())[: options.limit]
    origin = {
        "data": options.data.resolve().name,
        "command": "python scripts/bench/bench_onnx.py " + shlex.join(sys.argv[1:]),
    }
    rows = []
    for impl in IMPLEMENTATIONS:
        sizes = (options.length, options.batch_size, options.threads, options.repeats)
        rows.append(in_own_process(run, impl, options.model, texts, *sizes) | origin)
    append_rows("onnx", rows)
    torch.set_num_threads(options.threads)
    found = measure_quality(options.model, data, options.split, options.length)
    append_rows("onnx_quality", [row | origin for row in found])


if __name__ == "__main__":
    main()
