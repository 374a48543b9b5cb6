"""Train a dense encoder on pairs of sentences with graded similarity by CoSENT, and measure Spearman's
correlation on the test split.

    accelerate launch recipes/cosent_sts.py

Without arguments the recipe trains a small encoder from scratch on the docstrings of the installed Python
packages. It needs no network. Each pair is the beginning of one docstring and the rest of another, and its
score says how near the two stand in the code. Your own data are JSON lines with `sentence1`, `sentence2`,
`score` and `split` (train, test), plain or gzipped:

    accelerate launch recipes/cosent_sts.py --data FILE --model sentence-transformers/all-MiniLM-L6-v2 \
        --steps None --epochs 4 --learning-rate 2e-5

The run directory holds the settings (`config.json`), the versions and the machine (`env.json`), the measures
(`metrics.json`: Spearman's and Pearson's correlation of the cosine with the scores, before and after
training), the model with its card (`model/`) and the checkpoints. `--resume` continues from the last
checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lexforge import data, evaluation, export, losses, models, report, runs, training
from lexforge.common.command_line import run_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from datasets import Dataset

# Training takes a few minutes on two cores with these settings. The kind of model gives steps, learning rate,
# warm-up and length (`main`).
QUICK = training.TrainingSettings(
    batch_size=64, gradient_accumulation_steps=1, learning_rate=None, warmup_fraction=None, precision="fp32"
)

SOURCE = data.StsOptions()
CARD = export.CardOptions()
# The measures among which `--best-measure` chooses.
MEASURES = ("spearman_cosine", "pearson_cosine", "spearman_dot", "pearson_dot")


@dataclass(frozen=True)
class Config:
    """The settings of the run."""

    data: str = "docstrings"
    """What to train and test on: `docstrings`; scored pairs (.jsonl, .csv, .tsv, .parquet, also .gz and
    .zst), a folder of them by split or of `save_to_disk`; or `hf:organisation/name:configuration`."""

    source: Annotated[data.StsOptions, tyro.conf.arg(name="")] = SOURCE

    model: str = "lexical"
    """A dense encoder, or `lexical`: a small one built from the training texts, at first a bag of words."""

    scale: float = 20.0
    """Factor on the cosine similarities in the loss, the inverse of a temperature."""

    card: Annotated[export.CardOptions, tyro.conf.arg(name="")] = CARD

    output_dir: Path = Path("runs/cosent_sts")
    """The run directory; it must be new or empty, unless the run is resumed."""

    resume: bool = False
    """Whether to continue the run in `output_dir` from its last checkpoint."""

    max_seq_length: int | None = None
    """Tokens per sentence, special tokens included; longer sentences are cut. None is 128 from scratch, and
    what a pretrained model was saved with, at most 256."""

    evaluation: Annotated[training.EvaluationSettings, tyro.conf.arg(name="")] = field(
        default_factory=training.EvaluationSettings
    )

    train: Annotated[training.TrainingSettings, tyro.conf.arg(name="")] = QUICK


def load_pairs(cfg: Config, measured_splits: Sequence[str]) -> dict[str, Dataset]:
    """Load the pairs of the splits; the columns are `sentence1`, `sentence2` and `score`."""
    from datasets import Dataset

    splits = data.load_sts(cfg.data, ["train", *measured_splits], cfg.source)
    for split in measured_splits:
        if len({row["score"] for row in splits[split]}) == 1:
            raise ValueError(
                f"{cfg.data}: all scores of the split {split!r} are equal; a correlation needs at least two "
                "different scores"
            )
    return {split: Dataset.from_list(rows) for split, rows in splits.items()}


def main(cfg: Config) -> None:
    """Train a dense encoder and compare it with itself before training."""
    # Here, because --help need not wait for them.
    from sentence_transformers import SentenceTransformerTrainingArguments
    from sentence_transformers.base.training_args import BatchSamplers
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    # Processes. All of them train; only the main process measures and writes.
    process = runs.start_processes(cfg.train.seed)
    stages = runs.Stages(process)
    stages.begin("check the options")
    models.check_model(cfg.model, "SentenceTransformer")
    cfg = training.with_defaults(
        cfg,
        pretrained=training.KindDefaults(
            2e-5, 200, "two passes over stsb-en, with which a pretrained model gained (recipes/README.md)"
        ),
        scratch=training.KindDefaults(
            5e-4, 400, "it has everything to learn, and this takes a few minutes on two cores"
        ),
        say=process.print,
    )
    runs.check_run_directory(process, cfg.output_dir, cfg, resume=cfg.resume)
    training.check_reports(cfg.train.report_to)
    cfg.evaluation.check_measure(MEASURES)

    # Data. Training takes the split train; the split test is measured before and after training, and the
    # split dev during training.
    stages.begin("read the data")
    measured_splits = ["test"] if cfg.evaluation.eval_steps is None else ["test", "dev"]
    pairs = load_pairs(cfg, measured_splits)
    train = pairs["train"]
    training.check_full_batch(len(train), cfg.train, process.num_processes)
    evaluators = {
        split: EmbeddingSimilarityEvaluator(
            pairs[split]["sentence1"],
            pairs[split]["sentence2"],
            pairs[split]["score"],
            name="" if split == "test" else split,
        )
        for split in measured_splits
    }
    evaluator = evaluators["test"]
    process.print(f"{cfg.data}: {len(train)} training pairs, {len(pairs['test'])} test pairs", flush=True)

    # Run directory. It is claimed after the data is loaded, so that bad data leaves no folder behind.
    runs.claim_run_directory(process, cfg.output_dir, cfg, resume=cfg.resume)

    # Encoder. A saved one keeps its similarity, a new one gets the cosine; loss and evaluator follow it.
    stages.begin("load the encoder" if cfg.model != models.LEXICAL else "build the encoder")
    with process.main_process_first():
        checkpoint = models.resolve_backbone(
            cfg.model,
            sorted({*train["sentence1"], *train["sentence2"]}),
            cfg.output_dir / "backbone",
            max_seq_length=cfg.max_seq_length,
            seed=cfg.train.seed,
        )
    model = models.build_dense(checkpoint, max_seq_length=cfg.max_seq_length)

    # Loss. It compares all pairs of a batch, and with several processes those of all their batches.
    loss = losses.CoSENTLoss(model, scale=cfg.scale, gather_across_devices=process.num_processes > 1)

    # Evaluation before training.
    metrics = {}
    if process.is_main_process and cfg.evaluation.initial_evaluation:
        stages.begin("measure the model before training")
        metrics["initial"] = evaluator(model)

    # Training. A batch may hold a text twice, because no row is a negative of another.
    stages.begin("train")
    arguments = cfg.train.arguments(
        cfg.output_dir,
        SentenceTransformerTrainingArguments,
        batch_sampler=BatchSamplers.BATCH_SAMPLER,
        **cfg.evaluation.arguments(),
        **training.hub_arguments(cfg.card.push_to_hub),
    )
    trainer = training.DenseTrainer(
        model,
        loss,
        args=arguments,
        train_dataset=train,
        evaluator=evaluators.get("dev"),
        callbacks=[*cfg.train.callbacks(), *cfg.evaluation.callbacks()],
    )
    trainer.train(resume_from_checkpoint=cfg.resume)
    if not process.is_main_process:
        return

    # Evaluation after training.
    stages.begin("measure the model after training")
    metrics["trained"] = evaluator(model)

    # What the run leaves behind: the model, the numbers, and a table to read.
    stages.begin("write the results")
    model.save_pretrained(str(cfg.output_dir / "model"), create_model_card=False)
    export.write_card(
        model,
        cfg.output_dir / "model",
        cfg.card,
        task="similarity",
        base_model=cfg.model,
        data=cfg.data,
        split="test",
        measured=len(pairs["test"]),
        metrics=metrics,
        settings={"scale": cfg.scale, "steps": cfg.train.steps, "seed": cfg.train.seed},
        command=runs.launch_command(),
    )
    timing = {"timing": {"stage_seconds": stages.end()}}
    runs.write_json(cfg.output_dir / "metrics.json", metrics | timing | training.best_of(trainer.state))
    print(evaluation.metrics_table(metrics))
    print(f"\n{stages.table()}")
    print(f"{cfg.output_dir} holds the model and the numbers.")
    print(f"{report.write_page(cfg.output_dir)} shows the run in a browser.")
    if cfg.card.push_to_hub is not None:
        print(f"The model was uploaded to {training.push_model(trainer, cfg.output_dir / 'model')}")


if __name__ == "__main__":
    run_command(main, Config, __doc__)
    runs.leave_processes()
