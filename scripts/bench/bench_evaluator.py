"""A whole evaluation of a sparse encoder, ours beside sentence-transformers', each in a process of its own.

    python scripts/bench/bench_evaluator.py --model MODEL --data FOLDER --documents 4000 --queries 400

MODEL is a bare masked language model, FOLDER is in BEIR layout. Both encode the same queries and documents,
search 100 documents a query and score them: ours with the fused head of `lexforge.models.build_splade` and
graded judgements, theirs with the plain head and binary ones, which is all it knows. The run fails where
nDCG@10 over binary judgements differs by more than 1e-4. A third row is ours again on the unchanged model.
Rows go to results/evaluator.csv.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import tyro

from lexforge.data import load_retrieval_data

K = 100


@dataclass(frozen=True)
class Config:
    """What to evaluate."""

    model: str
    data: Path
    split: str = "test"
    documents: int | None = None  # the judged ones and as many others, in the order of the corpus; None: all
    queries: int | None = None  # the first ones; None: all
    max_seq_length: int = 128
    batch_size: int = 32


def task(cfg: Config) -> dict[str, dict[str, Any]]:
    """Queries, documents and judgements, cut to the sizes asked for."""
    data = load_retrieval_data(str(cfg.data), [cfg.split])
    qrels = dict(list(data.split(cfg.split).items())[: cfg.queries])
    needed = {document for judged in qrels.values() for document in judged}
    room = len(data.corpus) if cfg.documents is None else cfg.documents
    if room < len(needed):
        raise ValueError(f"the queries have {len(needed)} judged documents, more than the {room} asked for")
    others = [document for document in data.corpus if document not in needed][: room - len(needed)]
    kept = needed | set(others)
    corpus = {document: text for document, text in data.corpus.items() if document in kept}
    return {"queries": {query: data.queries[query] for query in qrels}, "corpus": corpus, "qrels": qrels}


def row(
    cfg: Config, impl: str, sizes: dict[str, Any], seconds: float, binary: float, graded: float | str
) -> dict[str, Any]:
    """A row of the results."""
    return {
        "data": cfg.data.resolve().name,
        "documents": len(sizes["corpus"]),
        "queries": len(sizes["queries"]),
        "max_seq_length": cfg.max_seq_length,
        "batch_size": cfg.batch_size,
        "impl": impl,
        "seconds": round(seconds, 2),
        "ndcg@10": round(binary, 6),
        "graded_ndcg@10": graded if isinstance(graded, str) else round(graded, 6),
    }


def theirs(cfg: Config) -> dict[str, Any]:
    """`SparseInformationRetrievalEvaluator` on the model as sentence-transformers builds it."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.evaluation import SparseInformationRetrievalEvaluator
    from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

    sizes = task(cfg)
    transformer = Transformer(cfg.model, transformer_task="fill-mask", max_seq_length=cfg.max_seq_length)
    model = SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")
    model.encode(["warm up"])
    relevant = {
        query: {document for document, grade in judged.items() if grade > 0}
        for query, judged in sizes["qrels"].items()
    }
    started = time.perf_counter()
    evaluator = SparseInformationRetrievalEvaluator(
        sizes["queries"],
        sizes["corpus"],
        relevant,
        ndcg_at_k=[10],
        mrr_at_k=[10],
        map_at_k=[K],
        accuracy_at_k=[10],
        precision_recall_at_k=[K],
        batch_size=cfg.batch_size,
        write_csv=False,
    )
    result = evaluator(model)
    seconds = time.perf_counter() - started
    return {"rows": [row(cfg, "sentence-transformers", sizes, seconds, result["dot_ndcg@10"], "")]}


def ours(cfg: Config) -> dict[str, Any]:
    """`RetrievalEvaluator` on the model with the fused head, and once more on the unchanged model."""
    from lexforge.evaluation import RetrievalEvaluator, evaluate_run
    from lexforge.models import build_splade

    sizes = task(cfg)
    model = build_splade(cfg.model, max_seq_length=cfg.max_seq_length, device="cpu")
    model.encode(["warm up"])
    binary = {
        query: {document: int(grade > 0) for document, grade in judged.items()}
        for query, judged in sizes["qrels"].items()
    }
    metrics = ("nDCG@10", "RR@10", f"AP@{K}", "Success@10", f"R@{K}")
    rows = []
    started = time.perf_counter()
    evaluator = RetrievalEvaluator(**sizes, metrics=metrics, k=K, batch_size=cfg.batch_size)
    for impl in ("lexforge", "lexforge, unchanged model"):
        result = evaluator.evaluate(model)
        seconds = time.perf_counter() - started
        ndcg = evaluate_run(result.run, binary, ["nDCG@10"])["nDCG@10"]
        rows.append(row(cfg, impl, sizes, seconds, ndcg, result.metrics["nDCG@10"]))
        started = time.perf_counter()
    return {"rows": rows}


def main(cfg: Config) -> None:
    """Evaluate, compare, append the rows."""
    rows = common.in_own_process(ours, cfg)["rows"] + common.in_own_process(theirs, cfg)["rows"]
    first, last = rows[0], rows[-1]
    if abs(first["ndcg@10"] - last["ndcg@10"]) > 1e-4:
        raise RuntimeError(f"nDCG@10 is {first['ndcg@10']} here and {last['ndcg@10']} there")
    for each in rows:
        each["times_faster"] = round(last["seconds"] / each["seconds"], 2)
    common.append_rows("evaluator", rows)


if __name__ == "__main__":
    main(tyro.cli(Config))
