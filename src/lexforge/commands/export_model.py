"""Write an encoder for another runtime, and compare what that runtime computes with the encoder.

    lexforge export model --model MODEL --target onnx --output OUT
    lexforge export model --model MODEL --target onnx --output OUT --quantize int8 --data FOLDER

Targets: `onnx` (vectors), `onnx-pairs` (Anserini and Pyserini), `onnx-logits` (fastembed), and the
experimental `elasticsearch` (eland) and `opensearch` (ml-commons), which no running server has loaded yet.
The page "Exported models" of the documentation says how each of them loads the files. MODEL is a saved SPLADE
`SparseEncoder` or a bare masked language model. The comparison runs over texts of `--data`, or of the
embedded docstrings. An export that differs from the encoder is refused, and nothing is left in OUT.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lexforge import data, evaluation, export
from lexforge.settings import NO_PREFIX, ModelTargetName, Quantization, SourceOptions


@dataclass(frozen=True)
class Config:
    """What to export, where to, and what it is compared and measured with."""

    model: str  # a folder, a run directory or a hub name
    target: ModelTargetName  # elasticsearch and opensearch are experimental
    output: Path  # a new or empty folder
    quantize: Quantization | None = None  # int8: weights in 8 bits, for the ONNX targets
    data: str | None = (
        None  # a folder in BEIR layout or `hf:organisation/name`: with --quantize, nDCG@10 and speed
    )
    split: str = "test"  # of --data: whose queries are measured
    source: Annotated[SourceOptions, NO_PREFIX] = SourceOptions()
    texts: int = 32  # queries, and documents, that the export is compared over
    max_seq_length: int | None = None  # in tokens; None keeps what the model was saved with


def main(cfg: Config) -> None:
    """Export, compare, and measure if asked to."""
    # What would fail later is checked before the data are read.
    export.check_model_export(cfg.model, cfg.target, cfg.output, cfg.quantize)
    if cfg.data is None:
        print(
            "checks the export on the docstrings of installed packages; --data DIR uses your texts",
            flush=True,
        )
    retrieval = data.load_retrieval_data(cfg.data or "docstrings", [cfg.split], cfg.source)
    measured = (retrieval, cfg.split) if cfg.data and cfg.quantize else None
    written = export.export_model(
        cfg.model,
        cfg.target,
        cfg.output,
        queries=list(retrieval.split_queries(cfg.split).values())[: cfg.texts],
        documents=list(retrieval.corpus.values())[: cfg.texts],
        quantize=cfg.quantize,
        max_seq_length=cfg.max_seq_length,
        measured_on=measured,
    )
    for agreement in written.agreements:
        print(agreement)
    if written.measures:
        print(evaluation.metrics_table(written.measures))
    print(f"{cfg.model} exported for {cfg.target} to {cfg.output}")
    for sentence in written.limits:
        print(f"- {sentence}")
