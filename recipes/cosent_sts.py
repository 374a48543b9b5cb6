"""Train a dense encoder on pairs of sentences with graded similarity by CoSENT, and measure Spearman's
correlation on the test split.

    accelerate launch recipes/cosent_sts.py

Without arguments the recipe trains a small encoder from scratch on the docstrings of the installed Python
packages. It needs no network. Each pair is the beginning of one docstring and the rest of another, and its
score says how near the two stand in the code. Your own data are rows with `sentence1`, `sentence2`, `score`
and `split` (train, test), in JSON lines or another format of rows:

    accelerate launch recipes/cosent_sts.py --data FILE --model sentence-transformers/all-MiniLM-L6-v2 \
        --steps None --epochs 4 --learning-rate 2e-5

The run directory holds:

- `config.json`: the settings
- `env.json`: the versions and the machine
- `metrics.json`: Spearman's and Pearson's correlation of the cosine with the scores, before and after
  training
- `model/`: the model with its card
- the checkpoints

`--resume` continues from the last checkpoint. `--plan` takes a few steps, tells what the run would take, and
writes nothing but caches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from lexforge import data, losses, models, runs, training
from lexforge.common.command_line import run_recipe
from lexforge.settings import LEXICAL, NO_PREFIX, RecipeSettings, StsOptions, TrainingSettings

# Training takes a few minutes on two cores with these settings. A pretrained model gains in the first two
# passes over stsb-en (recipes/README.md).
SCRATCH = TrainingSettings(
    steps=400,
    batch_size=64,
    gradient_accumulation_steps=1,
    learning_rate=5e-4,
    precision="auto",
    mini_batch_size="auto",
)
PRETRAINED = replace(SCRATCH, steps=200, learning_rate=2e-5)
LEFT_OPEN = SCRATCH.left_open()
# The measures among which `--best-measure` chooses.
MEASURES = ("spearman_cosine", "pearson_cosine", "spearman_dot", "pearson_dot")


@dataclass(frozen=True)
class Config(RecipeSettings):
    """The settings of the run."""

    data: str = "docstrings"
    """What to train and test on: `docstrings`; scored pairs (.parquet; .jsonl, .csv, .tsv, also .gz and
    .zst), a folder of them by split or of `save_to_disk`; or `hf:organisation/name:configuration`."""

    source: Annotated[StsOptions, NO_PREFIX] = StsOptions()

    model: str = "lexical"
    """A dense encoder, or `lexical`: a small one built from the training texts, at first a bag of words."""

    scale: float = 20.0
    """Factor on the cosine similarities in the loss, the inverse of a temperature."""

    output_dir: Path = Path("runs/cosent_sts")

    train: Annotated[TrainingSettings, NO_PREFIX] = LEFT_OPEN


def resolve(cfg: Config) -> Config:
    """Fill in what follows from the model: steps, learning rate, and the tokens per text."""
    train = SCRATCH if cfg.model == LEXICAL else PRETRAINED
    return cfg.follow_model(train, lambda: models.default_tokens(cfg.model))


def check(cfg: Config) -> None:
    """Refuse mistakes that show before torch is loaded, which takes seconds."""
    cfg.evaluation.check_measure(MEASURES)
    data.detect_rows(cfg.data, cfg.source)


def main(cfg: Config) -> None:
    """Train a dense encoder and compare it with itself before training."""
    check(cfg)
    # Here, because neither --help nor a mistake need wait for them.
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainingArguments
    from sentence_transformers.base.training_args import BatchSamplers
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    # All processes train; only the main process measures and writes.
    cfg, process, stages, plan = training.begin_run(cfg, resolve, "SentenceTransformer", routes=False)

    # Data. Training takes the split train; the split test is measured before and after training, and the
    # split dev during training.
    stages.begin("read the data")
    notes: list[str] = []  # what was guessed and left out in the files
    splits = data.load_sts(cfg.data, ["train", *cfg.evaluation.splits], cfg.source, notes)
    for note in notes:
        process.print(note)
    for split, rows in splits.items():
        if len({row["score"] for row in rows}) == 1:
            raise ValueError(
                f"{cfg.data}: all scores of the split {split!r} are equal; loss and correlation need at "
                "least two different scores"
            )
    pairs = {split: Dataset.from_list(rows) for split, rows in splits.items()}
    train = pairs["train"]
    training.check_full_batch(len(train), cfg.train, process.num_processes)
    if cfg.train.batch_size * process.num_processes == 1:
        raise ValueError("the loss orders the pairs of a batch, so --batch-size must be above 1; received 1")
    evaluators = {
        split: EmbeddingSimilarityEvaluator(
            pairs[split]["sentence1"],
            pairs[split]["sentence2"],
            pairs[split]["score"],
            name="" if split == "test" else split,
        )
        for split in cfg.evaluation.splits
    }
    evaluator = evaluators["test"]
    process.print(f"{cfg.data}: {len(train)} training pairs, {len(pairs['test'])} test pairs", flush=True)

    # Run directory. It is claimed after the data is loaded, so that bad data leaves no folder behind.
    # A resumed run is refused if its data have changed.
    runs.claim_run_directory(cfg.output_dir, cfg, data=data.digests(pairs))

    # Encoder. A saved one keeps its similarity, a new one gets the cosine; loss and evaluator follow it.
    texts = sorted({*train["sentence1"], *train["sentence2"]})
    model = training.load_start(cfg, cfg.output_dir, texts, process, stages, models.build_dense)
    cfg.evaluation.check_measure([name for name in MEASURES if name.endswith(model.similarity_fn_name)])

    # Loss. It compares all pairs of a batch, and with several processes those of all their batches.
    loss = losses.CoSENTLoss(
        model,
        scale=cfg.scale,
        gather_across_devices=process.num_processes > 1,
        mini_batch_size=cfg.train.mini_batch_size,
    )

    # Evaluation before training.
    metrics = {}
    if process.is_main_process and cfg.evaluation.initial_evaluation:
        stages.begin("measure the model before training")
        metrics["initial"] = evaluator(model)

    # Training. A batch may hold a text twice, because no row is a negative of another.
    stages.begin("train")
    trainer = training.DenseTrainer(
        model,
        loss,
        train_dataset=train if plan is None else plan.some(train),
        evaluator=evaluators.get("dev"),
        **training.trainer_options(
            cfg, SentenceTransformerTrainingArguments, batch_sampler=BatchSamplers.BATCH_SAMPLER
        ),
    )
    if plan is not None:
        process.print(plan.measure(trainer, pairs["test"]["sentence1"], searched=2 * len(pairs["test"])))
        return
    trainer.train(resume_from_checkpoint=cfg.resume)
    if not process.is_main_process:
        return

    # The model is saved before anything else can fail.
    stages.begin("save the model")
    training.save_model(model, cfg.output_dir / "model")

    # Evaluation after training.
    stages.begin("measure the model after training")
    metrics["trained"] = evaluator(model)

    # What the run leaves behind: the card of the model, the numbers, and a page.
    stages.begin("write the results")
    training.finish_run(
        cfg,
        trainer,
        stages,
        task="similarity",
        measured=len(pairs["test"]),
        metrics=metrics,
        settings={"scale": cfg.scale},
    )


if __name__ == "__main__":
    run_recipe(main, Config, __doc__, resolve=resolve)
    runs.leave_processes()
