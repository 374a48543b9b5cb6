"""Train a dense retriever by InfoNCE, MoCo or HCL, and measure it on held-out queries through FAISS.

    accelerate launch recipes/infonce_retrieval.py

With no arguments it trains a small encoder from scratch on the docstrings of the installed Python packages,
offline. On your own data, a folder in BEIR layout or `hf:organisation/name`:

    accelerate launch recipes/infonce_retrieval.py --data DIR \
        --model sentence-transformers/all-MiniLM-L6-v2 --steps 600 --learning-rate 2e-5

`--loss moco` ranks each positive against a queue of past keys, `--loss hcl` weighs hard in-batch negatives up
and takes false ones out. The run directory holds `config.json`, `env.json`, `metrics.json` (BM25, the model
before and after), `run.trec`, `model/` and checkpoints; `--resume` continues from the last one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from transformers import set_seed

from lexforge import data, evaluation, models, runs, training
from lexforge.losses import EmbeddingLoss, HCLLoss, InfoNCELoss, MoCoLoss
from lexforge.retrieval import BM25Index

# A few minutes on two cores.
QUICK = training.TrainingSettings(
    steps=600, batch_size=64, gradient_accumulation_steps=1, learning_rate=1e-3, precision="fp32"
)


@dataclass(frozen=True)
class Config:
    """Settings of the run."""

    data: str = "docstrings"  # `docstrings` (embedded), a folder in BEIR layout, or `hf:organisation/name`
    model: str = "lexical"  # any encoder, or `lexical`: from scratch, starting as a bag of words
    loss: Literal["infonce", "moco", "hcl"] = "infonce"
    temperature: float = 0.05  # of the cosine
    symmetric: bool = False  # infonce: also rank the queries of each document
    queue_size: int = 4096  # moco: keys kept
    momentum: float = 0.999  # moco: of the key encoder
    tau_plus: float = 0.01  # hcl: share of false negatives
    beta: float = 1.0  # hcl: how much harder negatives count
    negatives: Literal["none", "judged", "bm25"] = "none"  # infonce: judged not relevant, or BM25's best
    negatives_shortage: Literal["random", "drop"] = "random"  # a row that lacks one: filled up, left out
    output_dir: Path = Path("runs/infonce_retrieval")  # must be new, unless `resume`
    resume: bool = False
    max_seq_length: int = 128  # tokens a text
    train: Annotated[training.TrainingSettings, tyro.conf.arg(name="")] = QUICK


def build_loss(cfg: Config, model: SentenceTransformer, ranks: int) -> EmbeddingLoss:
    """The loss; over the batches of all ranks, where there are several."""
    if cfg.loss == "moco":
        return MoCoLoss(model, cfg.queue_size, cfg.momentum, cfg.temperature)
    if cfg.loss == "hcl":
        return HCLLoss(model, cfg.temperature, cfg.tau_plus, cfg.beta, gather_across_devices=ranks > 1)
    return InfoNCELoss(model, cfg.temperature, symmetric=cfg.symmetric, gather_across_devices=ranks > 1)


def main(cfg: Config) -> None:
    """Data, encoder, training, evaluation."""
    if cfg.negatives != "none" and cfg.loss != "infonce":
        raise ValueError(f"negatives are read by the loss infonce only; received the loss {cfg.loss!r}")
    process = runs.join_processes()
    set_seed(cfg.train.seed)
    retrieval = data.load_retrieval_data(cfg.data)
    texts = list(retrieval.corpus.values())
    bm25 = BM25Index.build(texts, list(retrieval.corpus))
    negatives = data.judged_negatives(retrieval) if cfg.negatives == "judged" else None
    if cfg.negatives == "bm25":
        negatives = bm25.negatives(retrieval.split_queries("train"), retrieval.split("train"), k=50)
    rows = data.training_rows(retrieval, "train", negatives, shortage=cfg.negatives_shortage)
    queries, judged = retrieval.split_queries("test"), retrieval.split("test")
    evaluation.check_run_ids(queries, retrieval.corpus)
    evaluator = evaluation.RetrievalEvaluator(queries, retrieval.corpus, judged)
    source = cfg.output_dir / "backbone" if cfg.model == "lexical" else cfg.model
    if process.is_main_process:
        runs.open_run(cfg.output_dir, asdict(replace(cfg, resume=False)), resume=cfg.resume)
        if cfg.model == "lexical" and not Path(source).is_dir():
            models.build_lexical_backbone(
                texts, source, max_seq_length=cfg.max_seq_length, seed=cfg.train.seed
            )
    process.wait_for_everyone()
    model = models.build_dense(source, max_seq_length=cfg.max_seq_length)

    initial = evaluator.evaluate(model) if process.is_main_process else None
    trainer = training.DenseTrainer(
        model,
        build_loss(cfg, model, process.num_processes),
        args=cfg.train.arguments(cfg.output_dir, SentenceTransformerTrainingArguments),
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train(resume_from_checkpoint=cfg.resume)
    if initial is None:
        return

    trained = evaluator.evaluate(model)
    model.save_pretrained(str(cfg.output_dir / "model"))
    found = bm25.search(evaluator.query_texts, k=evaluator.k).to_run(evaluator.query_ids)
    metrics = {
        "bm25": evaluation.evaluate_run(found, judged),
        "initial": initial.metrics,
        "trained": trained.metrics,
    }
    runs.write_json(cfg.output_dir / "metrics.json", metrics | {"timing": trained.timing})
    evaluation.write_run(cfg.output_dir / "run.trec", trained.run)
    print(evaluation.metrics_table(metrics))


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
