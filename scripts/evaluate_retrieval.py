"""Evaluate an encoder on a retrieval set: graded measures, sparsity, speed, a TREC run, a paired test.

    python scripts/evaluate_retrieval.py --model MODEL --data FOLDER --max-seq-length 128 --run run.trec

MODEL is a saved `SparseEncoder` or `SentenceTransformer`, or a bare masked language model, which becomes a
SPLADE encoder; a folder or a hub name. FOLDER is in BEIR layout. Search is exact unless `--index` says
otherwise.
"""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import tyro
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.util import load_file_path

from lexforge.data import load_beir
from lexforge.evaluation import RetrievalEvaluator, compare_runs, read_run, score_run, write_run
from lexforge.evaluation.metrics import METRICS
from lexforge.models import build_splade
from lexforge.retrieval import HNSW, IVF, FaissIndex, Flat, Index, InvertedIndex

INDEXES: dict[str, Callable[..., Index]] = {
    "inverted": InvertedIndex.build,
    "faiss-flat": partial(FaissIndex.build, layout=Flat()),
    "faiss-hnsw": partial(FaissIndex.build, layout=HNSW()),
    "faiss-ivf": partial(FaissIndex.build, layout=IVF()),
}


@dataclass(frozen=True)
class Config:
    """What to evaluate, and what to write."""

    model: str  # a folder or a hub name
    data: Path  # a folder in BEIR layout
    split: str = "test"
    index: Literal["inverted", "faiss-flat", "faiss-hnsw", "faiss-ivf"] | None = None  # None: exact
    k: int = 100  # documents retrieved for each query
    metrics: tuple[str, ...] = METRICS  # names as ir-measures has them
    max_seq_length: int | None = None  # tokens; None: what the model was saved with
    batch_size: int = 32
    exclude_self: bool = False  # drop a document whose id is the query's
    cache_dir: Path | None = None  # keeps the corpus's vectors for the next evaluation of the same model
    run: Path | None = None  # writes the run here, in TREC format
    json: Path | None = None  # writes metrics, sparsity and timing here
    compare: Path | None = None  # a run of another system over the same data: paired t-test against it


def load_model(name: str, max_seq_length: int | None) -> SparseEncoder | SentenceTransformer:
    """The encoder as it was saved; SPLADE models, saved or bare, with the fused head."""
    modules = load_file_path(name, "modules.json")
    if modules is None or "SpladePooling" in Path(modules).read_text(encoding="utf-8"):
        return build_splade(name, max_seq_length=max_seq_length)
    config = load_file_path(name, "config_sentence_transformers.json")
    settings = jsonlib.loads(Path(config).read_text(encoding="utf-8")) if config else {}
    model = (SparseEncoder if settings.get("model_type") == "SparseEncoder" else SentenceTransformer)(name)
    if max_seq_length is not None:
        model.max_seq_length = max_seq_length
    return model


def main(cfg: Config) -> None:
    """Evaluate, print, write."""
    for file in (cfg.run, cfg.json):
        if file is not None and not file.resolve().parent.is_dir():
            raise FileNotFoundError(f"the folder of {file} does not exist")
    data = load_beir(cfg.data)
    qrels = data.split(cfg.split)
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
        build_index=INDEXES[cfg.index] if cfg.index else None,
        cache_dir=cfg.cache_dir,
    )
    model = load_model(cfg.model, cfg.max_seq_length)
    if cfg.index and (cfg.index == "inverted") != isinstance(model, SparseEncoder):
        raise ValueError(f"--index {cfg.index} does not hold the vectors of a {type(model).__name__}")
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
    main(tyro.cli(Config))
