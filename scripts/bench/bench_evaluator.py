"""A whole evaluation of a sparse encoder, ours beside sentence-transformers', each in a process of its own.

    python scripts/bench/bench_evaluator.py --model MODEL --data FOLDER

MODEL is a bare masked language model, FOLDER is in BEIR layout. Both encode the queries of the split test and
all documents, search 100 documents a query and score them: ours with the fused head and graded judgements,
theirs with the plain head and binary ones, which is all it knows. The run fails where nDCG@10 over binary
judgements differs by more than 1e-4. A third row is ours again on the unchanged model. Rows go to
results/evaluator.csv.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import tyro
from common import append_rows, in_own_process
from sentence_transformers.sparse_encoder.evaluation import SparseInformationRetrievalEvaluator
from stock_splade import stock_encoder

from lexforge.data import load_retrieval_data
from lexforge.evaluation import RetrievalEvaluator, evaluate_run
from lexforge.models import fuse_splade_head

K, LENGTH, BATCH_SIZE = 100, 128, 32


def task(folder: str) -> dict[str, Any]:
    """The queries, documents and judgements of the split test."""
    data = load_retrieval_data(folder, ["test"])
    return {"queries": data.split_queries("test"), "corpus": dict(data.corpus), "qrels": data.split("test")}


def theirs(model_folder: str, folder: str) -> list[dict[str, Any]]:
    """`SparseInformationRetrievalEvaluator` on the model as sentence-transformers builds it."""
    found, model = task(folder), stock_encoder(model_folder, LENGTH)
    model.encode(["warm up"])
    relevant = {
        query: {document for document, grade in judged.items() if grade > 0}
        for query, judged in found["qrels"].items()
    }
    started = time.perf_counter()
    evaluator = SparseInformationRetrievalEvaluator(
        found["queries"],
        found["corpus"],
        relevant,
        ndcg_at_k=[10],
        mrr_at_k=[10],
        map_at_k=[K],
        accuracy_at_k=[10],
        precision_recall_at_k=[K],
        batch_size=BATCH_SIZE,
        write_csv=False,
    )
    ndcg = evaluator(model)["dot_ndcg@10"]
    seconds = time.perf_counter() - started
    return [{"impl": "sentence-transformers", "seconds": seconds, "ndcg@10": ndcg, "graded_ndcg@10": ""}]


def ours(model_folder: str, folder: str) -> list[dict[str, Any]]:
    """`RetrievalEvaluator` on the model with the fused head, and once more on the unchanged model."""
    found, model = task(folder), fuse_splade_head(stock_encoder(model_folder, LENGTH))
    model.encode(["warm up"])
    binary = {
        query: {document: int(grade > 0) for document, grade in judged.items()}
        for query, judged in found["qrels"].items()
    }
    metrics = ("nDCG@10", "RR@10", f"AP@{K}", "Success@10", f"R@{K}")
    rows = []
    started = time.perf_counter()
    evaluator = RetrievalEvaluator(**found, metrics=metrics, k=K, batch_size=BATCH_SIZE)
    for impl in ("lexforge", "lexforge, unchanged model"):
        result = evaluator.evaluate(model)
        seconds = time.perf_counter() - started
        ndcg = evaluate_run(result.run, binary, ["nDCG@10"])["nDCG@10"]
        graded = round(result.metrics["nDCG@10"], 6)
        rows.append({"impl": impl, "seconds": seconds, "ndcg@10": ndcg, "graded_ndcg@10": graded})
        started = time.perf_counter()
    return rows


def main(model: str, data: str) -> None:
    """Evaluate, compare, append the rows."""
    rows = in_own_process(ours, model, data) + in_own_process(theirs, model, data)
    first, last = rows[0], rows[-1]
    if abs(first["ndcg@10"] - last["ndcg@10"]) > 1e-4:
        raise RuntimeError(f"nDCG@10 is {first['ndcg@10']} here and {last['ndcg@10']} there")
    found = task(data)
    same = {"data": Path(data).name, "documents": len(found["corpus"]), "queries": len(found["queries"])}
    same |= {"max_seq_length": LENGTH, "batch_size": BATCH_SIZE}
    for row in rows:
        row["times_faster"] = round(last["seconds"] / row["seconds"], 2)
        row |= {"seconds": round(row["seconds"], 2), "ndcg@10": round(row["ndcg@10"], 6)}
    append_rows("evaluator", [same | row for row in rows])


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
