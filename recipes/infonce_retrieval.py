"""Train a dense retriever by InfoNCE, MoCo or HCL, and measure it on held-out queries through FAISS.

    accelerate launch recipes/infonce_retrieval.py

Without arguments the recipe trains a small encoder from scratch on the docstrings of the installed Python
packages. It needs no network. On your own data, a folder in BEIR layout or `hf:organisation/name`:

    accelerate launch recipes/infonce_retrieval.py --data DIR \
        --model sentence-transformers/all-MiniLM-L6-v2 --steps 600 --learning-rate 2e-5

`--loss infonce` ranks the positive of each query above all other documents of the batch. `--loss moco` ranks
it above a queue of past documents. `--loss hcl` gives hard in-batch negatives more weight and corrects for
those that are in fact positives.

The run directory holds the settings (`config.json`), the versions and the machine (`env.json`), the measures
of BM25 and of the model before and after training (`metrics.json`), the documents found for each test query
(`run.trec`), the model (`model/`) and the checkpoints. `--resume` continues from the last checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments

from lexforge import data, evaluation, models, runs, training
from lexforge.losses import EmbeddingLoss, HCLLoss, InfoNCELoss, MoCoLoss
from lexforge.retrieval import BM25Index

# Training takes a few minutes on two cores with these settings.
QUICK = training.TrainingSettings(
    steps=600, batch_size=64, gradient_accumulation_steps=1, learning_rate=1e-3, precision="fp32"
)


@dataclass(frozen=True)
class LossSettings:
    """The loss and its numbers."""

    name: Annotated[Literal["infonce", "moco", "hcl"], tyro.conf.arg(name="loss")] = "infonce"
    """The loss: `infonce`, `moco` or `hcl`."""

    temperature: float = 0.05
    """Temperature of the cosine similarities."""

    symmetric: bool = False
    """InfoNCE only: whether to rank the queries for each document as well."""

    queue_size: int = 4096
    """MoCo only: number of past documents in the queue."""

    momentum: float = 0.999
    """MoCo only: share of its old weights that the key encoder keeps at each step."""

    tau_plus: float = 0.01
    """HCL only: the share of in-batch negatives that are taken to be positives."""

    beta: float = 1.0
    """HCL only: how much more weight a hard negative gets; 0 weighs all alike."""


@dataclass(frozen=True)
class Config:
    """The settings of the run."""

    data: str = "docstrings"
    """What to train and test on: `docstrings`, a folder in BEIR layout, or `hf:organisation/name`."""

    model: str = "lexical"
    """A dense encoder, or `lexical`: a small one built from the corpus, at first a bag of words."""

    loss: Annotated[LossSettings, tyro.conf.arg(name="")] = LossSettings()

    negatives: Literal["none", "judged", "bm25"] = "none"
    """InfoNCE only: hard negatives, `judged` not relevant or the best of `bm25`, one per row."""

    negatives_shortage: Literal["random", "drop"] = "random"
    """What happens to a row without a negative: a `random` document fills it up, or it is dropped."""

    output_dir: Path = Path("runs/infonce_retrieval")
    """The run directory; it must be new or empty, unless the run is resumed."""

    resume: bool = False
    """Whether to continue the run in `output_dir` from its last checkpoint."""

    max_seq_length: int = 128
    """Tokens per text, special tokens included; longer texts are cut."""

    train: Annotated[training.TrainingSettings, tyro.conf.arg(name="")] = QUICK


def load_rows(cfg: Config, retrieval: data.RetrievalData, bm25: BM25Index) -> list[dict[str, Any]]:
    """Load the training rows: a query, a document that answers it, and its negative, if any."""
    negatives = None
    if cfg.negatives == "judged":
        negatives = data.judged_negatives(retrieval)
    elif cfg.negatives == "bm25":
        negatives = bm25.negatives(retrieval.split_queries("train"), retrieval.split("train"), k=50)
    return data.training_rows(retrieval, "train", negatives, shortage=cfg.negatives_shortage)


def build_loss(settings: LossSettings, model: SentenceTransformer, gather: bool) -> EmbeddingLoss:
    """Build the loss; `gather` says whether the batches of all processes count as one batch."""
    if settings.name == "moco":  # all processes share its queue in any case
        return MoCoLoss(model, settings.queue_size, settings.momentum, settings.temperature)
    if settings.name == "hcl":
        return HCLLoss(
            model, settings.temperature, settings.tau_plus, settings.beta, gather_across_devices=gather
        )
    return InfoNCELoss(
        model, settings.temperature, symmetric=settings.symmetric, gather_across_devices=gather
    )


def main(cfg: Config) -> None:
    """Train a dense retriever and compare it with BM25 and with itself before training."""
    if cfg.negatives != "none" and cfg.loss.name != "infonce":
        raise ValueError(
            f"negatives are read by the loss infonce only; received the loss {cfg.loss.name!r} with "
            f"--negatives {cfg.negatives}"
        )

    # Processes. All of them train; only the main process measures and writes.
    process = runs.start_processes(cfg.train.seed)

    # Data. The train split gives the rows, the test split the evaluation; both search the same corpus.
    retrieval = data.load_retrieval_data(cfg.data)
    documents = list(retrieval.corpus.values())
    bm25 = BM25Index.build(documents, list(retrieval.corpus))
    rows = load_rows(cfg, retrieval, bm25)
    training.check_full_batch(len(rows), cfg.train, process.num_processes)
    evaluator = evaluation.evaluator_of_split(retrieval, "test")
    process.print(
        f"{cfg.data}: {len(rows)} training rows, {len(evaluator.query_ids)} test queries, "
        f"{len(documents)} documents",
        flush=True,
    )

    # Run directory. It is claimed after the data is loaded, so that bad data leaves no folder behind.
    runs.claim_run_directory(process, cfg.output_dir, cfg, resume=cfg.resume)

    # Encoder. A saved one keeps its similarity, a new one gets the cosine; loss and searches follow it.
    with process.main_process_first():
        checkpoint = models.resolve_backbone(
            cfg.model,
            documents,
            cfg.output_dir / "backbone",
            max_seq_length=cfg.max_seq_length,
            seed=cfg.train.seed,
        )
    model = models.build_dense(checkpoint, max_seq_length=cfg.max_seq_length)

    # Loss. With several processes, their batches count as one batch.
    loss = build_loss(cfg.loss, model, gather=process.num_processes > 1)

    # Evaluation before training.
    initial = evaluator.evaluate(model) if process.is_main_process else None

    # Training. No batch holds a text twice, because the second one would count as a negative of the first.
    arguments = cfg.train.arguments(cfg.output_dir, SentenceTransformerTrainingArguments)
    trainer = training.DenseTrainer(model, loss, args=arguments, train_dataset=data.rows_to_dataset(rows))
    trainer.train(resume_from_checkpoint=cfg.resume)
    if not process.is_main_process:
        return

    # Evaluation after training, with BM25 on the same queries.
    trained = evaluator.evaluate(model)
    metrics = {
        "bm25": evaluation.evaluate_bm25(bm25, evaluator),
        "initial": initial.metrics,
        "trained": trained.metrics,
    }

    # What the run leaves behind: the model, the numbers, the documents found, and a table to read.
    model.save_pretrained(str(cfg.output_dir / "model"))
    runs.write_json(cfg.output_dir / "metrics.json", metrics | {"timing": trained.timing})
    evaluation.write_run(cfg.output_dir / "run.trec", trained.run)
    print(evaluation.metrics_table(metrics))
    print(f"\n{cfg.output_dir} holds the model, the numbers and the documents found.")


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
