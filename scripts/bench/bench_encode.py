"""How many documents per second an encoder takes, by each way of running it.

    python scripts/bench/bench_encode.py --model ../shared/models/splade-tiny --texts corpus.jsonl
    python scripts/bench/bench_encode.py --model lexical --texts corpus.jsonl

`lexical` builds the backbone from scratch of the texts. "sentence-transformers" is its own `model.encode`,
and "fused" the same with the fused head. "lexforge" is `corpus.encode`, which also makes batches by tokens,
"lexforge float32" does so without the screens of the head (`LEXFORGE_SPLADE_HEAD`), and "lexforge bf16" with
products in bfloat16. "onnxruntime" runs the exported model on texts sorted by their characters, and
"onnxruntime int8" the quantized one. Rows go to results/encode.csv.

    python scripts/bench/bench_encode.py --model MODEL --ranks FOLDER FOLDER

`--ranks` tells what bfloat16 costs in rank instead: the test queries of BEIR folders search documents that
were encoded in float32 and in bfloat16. Its rows go to results/encode_quality.csv.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import torch
from common import append_rows, in_own_process, measure, read_texts
from stock_splade import stock_encoder

from lexforge.corpus import encode
from lexforge.data import load_retrieval_data
from lexforge.evaluation import score_run
from lexforge.export import export_model
from lexforge.export.models.onnx import run_pooled
from lexforge.kernels.splade_head.choice import VARIABLE
from lexforge.models import fuse_splade_head, load_encoder, resolve_backbone
from lexforge.models.load import check_encoder
from lexforge.retrieval import build_exact
from lexforge.settings import EncodingPrecision

PEER, ONNX, INT8 = "sentence-transformers", "onnxruntime", "onnxruntime int8"
BF16 = "lexforge bf16"
IMPLEMENTATIONS = (PEER, "fused", "lexforge", "lexforge float32", BF16, ONNX, INT8)
MEASURES = ("nDCG@10", "R@100")
EDGE_TEXTS = ["", "a", "한국어 문서를 검색합니다", "ordinary ASCII text", "very long text " * 400]


def encoding(
    impl: str, folder: str, length: int, batch_size: int, scratch: str
) -> Callable[[list[str]], Any]:
    """What encodes texts by an implementation."""
    if impl in (ONNX, INT8):
        compared = EDGE_TEXTS[1:4]  # the export checks itself on these
        output = Path(scratch) / "onnx"
        export_model(
            folder,
            "onnx",
            output,
            queries=compared,
            documents=compared,
            quantize="int8" if impl == INT8 else None,
            max_seq_length=length,
        )
        vectors_of = run_pooled(output, torch.get_num_threads())

        def batches(texts: list[str]) -> None:
            ordered = sorted(texts, key=len, reverse=True)
            for start in range(0, len(ordered), batch_size):
                vectors_of(ordered[start : start + batch_size])

        return batches
    model = stock_encoder(folder, length)
    if impl != PEER:
        fuse_splade_head(model)
    if impl.startswith("lexforge"):
        os.environ[VARIABLE] = "float32" if impl.endswith("float32") else "measured"
        precision: EncodingPrecision = "bf16" if impl == BF16 else "fp32"
        return lambda texts: encode(model, texts, "document", batch_size=batch_size, precision=precision)
    return lambda texts: model.encode(texts, batch_size=batch_size, show_progress_bar=False)


def run(
    impl: str, folder: str, texts: list[str], length: int, batch_size: int, repeats: int
) -> dict[str, Any]:
    """One implementation in a process of its own."""
    difference = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        function = encoding(impl, folder, length, batch_size, scratch)
        tokenizer = stock_encoder(folder, length).tokenizer
        tokens = sum(len(ids) for ids in tokenizer(texts, truncation=True, max_length=length)["input_ids"])
        # First of all, because memory that other work has left behind would be missing from its peak.
        times = measure(lambda: function(texts), repeats)
        if impl not in (PEER, ONNX, INT8):  # the export makes its own comparison
            expected = stock_encoder(folder, length).encode(EDGE_TEXTS + texts[:64]).to_dense()
            vectors = function(EDGE_TEXTS + texts[:64])
            received = vectors.to_dense() if impl == "fused" else torch.from_numpy(vectors.toarray())
            difference = float((received - expected).abs().max())
            if difference > 1e-5 and impl != BF16:
                raise RuntimeError(f"vectors of {impl} and of {PEER} differ by {difference}")
    return {
        "documents": len(texts),
        "tokens": tokens,
        "batch_size": batch_size,
        "impl": impl,
        "largest_difference": f"{difference:.1e}",
        "documents_per_s": round(len(texts) / times["median_s"], 1),
        **times,
    }


def ranks(name: str, folder: Path, length: int) -> dict[str, Any]:
    """How documents of each precision rank for the test queries of a collection."""
    model, collection = load_encoder(name, length, "cpu"), load_retrieval_data(str(folder))
    qrels = collection.split("test")
    texts = [collection.queries[query] for query in qrels]
    queries = encode(model, texts, "query")
    row: dict[str, Any] = {"model": Path(name).name, "data": folder.name, "queries": len(texts)}
    for precision in get_args(EncodingPrecision):
        documents = encode(model, list(collection.corpus.values()), "document", precision=precision)
        index = build_exact(documents, list(collection.corpus), similarity=check_encoder(model))
        scores = score_run(index.search(queries, 100).to_run(list(qrels)), qrels, MEASURES)
        row |= {f"{measure} {precision}": round(scores.mean[measure], 5) for measure in MEASURES}
    return row


def main() -> None:
    """Run the implementations and append their rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of a masked language model, or lexical")
    parser.add_argument("--texts", help="JSON lines with a field text")
    parser.add_argument(
        "--ranks", type=Path, nargs="+", help="BEIR folders whose ranking is measured instead"
    )
    parser.add_argument("--documents", type=int, default=512)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--impl", choices=IMPLEMENTATIONS, nargs="*", default=IMPLEMENTATIONS)
    args = parser.parse_args()
    if args.ranks:
        append_rows("encode_quality", [ranks(args.model, folder, args.length) for folder in args.ranks])
        return
    if args.texts is None:
        parser.error("--texts or --ranks is needed")
    texts = read_texts(args.texts, args.documents)
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "backbone"
        model = str(resolve_backbone(args.model, texts, built, max_seq_length=args.length, seed=0))
        for impl in args.impl:
            row = in_own_process(run, impl, model, texts, args.length, args.batch_size, args.repeats)
            append_rows("encode", [{"model": Path(args.model).name, **row}])


if __name__ == "__main__":
    main()
