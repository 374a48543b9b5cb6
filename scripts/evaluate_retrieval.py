"""Evaluate an encoder on a retrieval set: graded measures, sparsity, speed, a TREC run, a paired test.

    python scripts/evaluate_retrieval.py --model MODEL --data FOLDER --max-seq-length 128 --run run.trec

MODEL is a saved `SparseEncoder` or `SentenceTransformer`, or a bare masked language model, which becomes a
SPLADE encoder; a folder or a hub name. FOLDER is in BEIR layout. Search is exact unless `--index` says
otherwise.
"""

from __future__ import annotations

import json as jsonlib
import logging
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro
from sentence_transformers import SparseEncoder

from lexforge.corpus.stored_index import IndexKind, index_builder
from lexforge.data import load_beir
from lexforge.evaluation import (
    RetrievalEvaluator,
    check_run_ids,
    compare_runs,
    read_run,
    score_run,
    write_run,
)
from lexforge.evaluation.metrics import METRICS
from lexforge.models.load import load_encoder


@dataclass(frozen=True)
class Config:
    """What to evaluate, and what to write."""

    model: str  # a folder or a hub name
    data: Path  # a folder in BEIR layout
    split: str = "test"
    index: IndexKind | None = None  # None: exact
    uri: str | None = None  # of --index milvus: http://host:19530 or a file in .db; token: MILVUS_TOKEN
    collection: str = "lexforge"  # of --index milvus; it must be new, or hold this corpus
    k: int = 100  # documents retrieved for each query
    metrics: tuple[str, ...] = METRICS  # names as ir-measures has them
    max_seq_length: int | None = None  # tokens; None: what the model was saved with
    batch_size: int = 32
    exclude_self: bool = False  # drop a document whose id is the query's
    cache_dir: Path | None = None  # keeps the corpus's vectors for the next evaluation of the same model
    run: Path | None = None  # writes the run here, in TREC format
    json: Path | None = None  # writes metrics, sparsity and timing here
    compare: Path | None = None  # a run of another system over the same data: paired t-test against it


def milvus_options(cfg: Config) -> dict[str, str]:
    """Where a Milvus index is, if it is one."""
    if cfg.uri is None:
        return {}
    return {"uri": cfg.uri, "collection": cfg.collection, "token": os.environ.get("MILVUS_TOKEN", "")}


def main(cfg: Config) -> None:
    """Evaluate, print, write."""
    for file in (cfg.run, cfg.json):
        if file is not None and not file.resolve().parent.is_dir():
            raise FileNotFoundError(f"the folder of {file} does not exist")
    data = load_beir(cfg.data, splits=[cfg.split])
    qrels = data.split(cfg.split)
    if cfg.run is not None:
        check_run_ids(qrels, data.corpus)
    other = cfg.compare and read_run(cfg.compare, queries=data.queries, documents=data.corpus)
    evaluator = RetrievalEvaluator(
        data.queries,
        data.corpus,
        qrels,
        metrics=cfg.metrics,
        k=cfg.k,
        batch_size=cfg.batch_size,
        exclude_self=cfg.exclude_self,
        show_progress_bar=True,
        cache_dir=cfg.cache_dir,
    )
    model = load_encoder(cfg.model, cfg.max_seq_length)
    if cfg.index is not None or cfg.uri is not None:
        vectors = "sparse" if isinstance(model, SparseEncoder) else "dense"
        evaluator.build_index = index_builder(cfg.index, vectors, **milvus_options(cfg))
    result = evaluator.evaluate(model)
    report = {"metrics": result.metrics, "sparsity": result.sparsity, "timing": result.timing}
    for values in report.values():
        for key, value in values.items():
            print(f"{key:24} {value:,.4f}")
    if other:
        second = score_run(result.run, evaluator.qrels, cfg.metrics)
        compared = compare_runs(score_run(other, evaluator.qrels, cfg.metrics), second)
        for name, c in compared.items():
            print(f"{name:24} {c.first:.4f} -> {c.second:.4f}  {c.difference:+.4f}  p = {c.p_value:.4g}")
        report["comparison"] = {name: asdict(values) for name, values in compared.items()}
    if cfg.json is not None:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(cfg).items()}
        cfg.json.write_text(jsonlib.dumps({"config": settings, **report}, indent=1) + "\n", encoding="utf-8")
    if cfg.run is not None:
        write_run(cfg.run, result.run)


if __name__ == "__main__":
    logging.getLogger("lexforge").setLevel(logging.INFO)
    logging.getLogger("lexforge").addHandler(logging.StreamHandler(sys.stderr))
    main(tyro.cli(Config))
