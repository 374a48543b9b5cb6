"""Train a dense retriever by InfoNCE, MoCo or HCL, and measure it on held-out queries through FAISS.

    accelerate launch recipes/infonce_retrieval.py

Without arguments the recipe trains a small encoder from scratch on the docstrings of the installed Python
packages. It needs no network. On your own data, such as a folder in BEIR layout or a table of pairs:

    accelerate launch recipes/infonce_retrieval.py --data DIR \
        --model sentence-transformers/all-MiniLM-L6-v2 --steps 600 --learning-rate 2e-5

`--loss infonce` ranks the positive of each query above all other documents of the batch. `--loss moco` ranks
it above a queue of past documents. `--loss hcl` gives hard in-batch negatives more weight and corrects for
those that are in fact positives.

The run directory holds:

- `config.json`: the settings
- `env.json`: the versions and the machine
- `metrics.json`: the measures of BM25 and of the model before and after training
- `run.trec`: the documents found for each test query
- `log.jsonl`: the log
- `model/`: the model with its card
- `report.html`: a page that shows all of it in a browser
- the checkpoints

`--resume` continues from the last checkpoint. `--plan` takes a few steps, tells what the run would take, and
writes nothing but caches.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from lexforge import data, evaluation, losses, models, report, runs, training
from lexforge.common.command_line import refuse_unread, run_recipe
from lexforge.data.columns import text_kind
from lexforge.negatives import NEGATIVE_RULE
from lexforge.settings import LEXICAL, NO_PREFIX, RecipeSettings, SourceOptions, TrainingSettings

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Training takes a few minutes on two cores with these settings. A pretrained model gained most in its first
# 120 steps (recipes/README.md).
SCRATCH = TrainingSettings(
    steps=600,
    batch_size=64,
    gradient_accumulation_steps=1,
    learning_rate=1e-3,
    precision="auto",
    mini_batch_size="auto",
)
PRETRAINED = replace(SCRATCH, steps=200, learning_rate=5e-5)
LEFT_OPEN = SCRATCH.left_open()


@dataclass(frozen=True)
class LossOptions:
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
class Config(RecipeSettings):
    """The settings of the run."""

    data: str = "docstrings"
    """What to train and test on: `docstrings`, a folder in BEIR layout or of MS MARCO's files, rows of texts,
    or `hf:organisation/name:configuration`. Rows of texts are a file (.parquet; .csv, .tsv, .jsonl, also .gz
    and .zst), a folder of such files by split, or one of `save_to_disk`."""

    source: Annotated[SourceOptions, NO_PREFIX] = SourceOptions()

    model: str = "lexical"
    """A dense encoder, or `lexical`: a small one built from the corpus, at first a bag of words."""

    loss: Annotated[LossOptions, NO_PREFIX] = LossOptions()

    negatives: Literal["given", "none", "judged", "bm25"] = "given"
    """Hard negatives, which only infonce reads: those `given` in rows of texts, if any; `none`; or one per
    row, `judged` not relevant or the best of `bm25`. A random document stands in where there is none."""

    output_dir: Path = Path("runs/infonce_retrieval")

    eval_documents: int | None = None
    """Documents that every evaluation searches: the judged ones and a random sample; None takes all."""

    train: Annotated[TrainingSettings, NO_PREFIX] = LEFT_OPEN


def resolve(cfg: Config) -> Config:
    """Fill in what follows from the model: steps, learning rate, and the tokens per text."""
    train = SCRATCH if cfg.model == LEXICAL else PRETRAINED
    return cfg.follow_model(train, lambda: models.default_tokens(cfg.model))


def check(cfg: Config) -> None:
    """Refuse mistakes that show before torch is loaded, which takes seconds."""
    cfg.evaluation.check_measure(evaluation.METRICS)
    data.check_source(cfg.data, ["train", *cfg.evaluation.splits], cfg.source)
    if cfg.negatives in ("judged", "bm25") and cfg.loss.name != "infonce":
        raise ValueError(
            f"negatives are read by the loss infonce only; received the loss {cfg.loss.name!r} with "
            f"--negatives {cfg.negatives}"
        )
    readers = {
        "symmetric": "infonce",
        "queue_size": "moco",
        "momentum": "moco",
        "tau_plus": "hcl",
        "beta": "hcl",
    }
    unread = [name for name, loss in readers.items() if loss != cfg.loss.name]
    refuse_unread(cfg.loss, unread, f"the loss is {cfg.loss.name}")


def build_loss(settings: LossOptions, model: SentenceTransformer, **shared: Any) -> losses.EmbeddingLoss:
    """Build the loss; `shared` are the arguments that all three take."""
    if settings.name == "moco":
        return losses.MoCoLoss(model, settings.queue_size, settings.momentum, settings.temperature, **shared)
    shared["gather_across_devices"] = True  # as for MoCo, whose queue holds the keys of all processes
    if settings.name == "hcl":
        return losses.HCLLoss(model, settings.temperature, settings.tau_plus, settings.beta, **shared)
    return losses.InfoNCELoss(model, settings.temperature, symmetric=settings.symmetric, **shared)


def main(cfg: Config) -> None:
    """Train a dense retriever and compare it with BM25 and with itself before training."""
    check(cfg)
    # Here, because neither --help nor a mistake need wait for it.
    from sentence_transformers import SentenceTransformerTrainingArguments

    # All processes train; only the main process measures and writes.
    cfg, process, stages, plan = training.begin_run(cfg, resolve, "SentenceTransformer")

    # Data. The train split gives the rows; the test split is measured before and after training, and the dev
    # split during training.
    stages.begin("read the data")
    given = cfg.negatives in ("given", "none")
    loaded, evaluators = training.read_retrieval(cfg, process, given_rows=given)
    documents, searched = loaded.documents, loaded.measured.corpus
    evaluator = evaluators["test"]

    # Training rows: a query, a document that answers it, and the negatives, which infonce alone reads.
    stages.begin("make the training rows")
    negatives = cfg.negatives if cfg.loss.name == "infonce" else "none"
    rows = training.load_rows(loaded, evaluator, negatives, NEGATIVE_RULE)
    training.check_full_batch(len(rows), cfg.train, process.num_processes)
    if cfg.loss.name == "moco":
        training.check_queue(cfg.loss.queue_size, cfg.train, process.num_processes)
    process.print(
        f"{cfg.data}: {len(rows)} training rows, {len(evaluator.query_ids)} test queries, "
        f"{len(documents)} documents, {len(searched)} of them searched",
        flush=True,
    )
    if plan is not None:
        rows = plan.some(rows)

    # Run directory. It is claimed after the data is loaded, so that bad data leaves no folder behind.
    # A resumed run is refused if its data have changed.
    runs.claim_run_directory(cfg.output_dir, cfg, data=loaded.digests(rows))

    # Encoder. A saved one keeps its similarity, a new one gets the cosine; loss and searches follow it.
    model = training.load_start(cfg, cfg.output_dir, documents, process, stages, models.build_dense)
    if process.is_main_process:
        for line in training.unknown_rows(model, loaded):
            print(line)

    # Loss. With several processes, their batches count as one batch.
    loss = build_loss(cfg.loss, model, mini_batch_size=cfg.train.mini_batch_size)

    # Evaluation before training, with BM25 on the same queries. A plan measures BM25 alone.
    record = report.RunRecord(cfg.output_dir)
    if process.is_main_process:
        stages.begin("measure BM25")
        record.add("bm25", evaluation.evaluate_bm25(evaluator))
        if cfg.evaluation.initial_evaluation:
            stages.begin("measure the model before training")
            record.add("initial", evaluator.evaluate(model))

    # Training. No batch holds a text twice, because the second one would count as a negative of the first.
    # No loss of this recipe reads the scores of a teacher. A model with a Router must be told which columns
    # hold queries and which hold documents.
    stages.begin("train")
    if note := report.loss_note(asdict(cfg)):
        process.print(note)
    train_dataset = data.rows_to_dataset(rows)
    if "label" in train_dataset.column_names:
        train_dataset = train_dataset.remove_columns("label")
    kinds = {name: text_kind(name) for name in train_dataset.column_names}
    trainer = training.DenseTrainer(
        model,
        loss,
        train_dataset=train_dataset,
        evaluator=evaluators.get("dev"),
        **training.trainer_options(
            cfg,
            SentenceTransformerTrainingArguments,
            router_mapping=kinds if models.has_router(model) else {},
            **training.weighted_batches(loaded.weights if plan is None else None),  # their draw costs nothing
        ),
    )
    if plan is not None:
        texts = len(searched) + len(evaluator.query_ids)
        process.print(plan.measure(trainer, documents, searched=texts))
        return
    trainer.train(resume_from_checkpoint=cfg.resume)
    if not process.is_main_process:
        return

    # The model is saved before anything else can fail.
    stages.begin("save the model")
    training.save_model(model, cfg.output_dir / "model")

    # Evaluation after training.
    stages.begin("measure the model after training")
    trained = evaluator.evaluate(model)
    record.add("trained", trained)

    # What the run leaves behind: sample searches, the card of the model, the numbers, and a page.
    stages.begin("write the results")
    record.look_closer(model, evaluator)
    training.finish_run(
        cfg,
        trainer,
        stages,
        task="retrieval",
        measured=len(searched),
        metrics=record.metrics,
        settings={
            "loss": cfg.loss.name,
            "negatives": negatives if "negative_1" in rows[0] else "none",
        },
        timing=trained.timing,
    )


if __name__ == "__main__":
    run_recipe(main, Config, __doc__, resolve=resolve)
    runs.leave_processes()
