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
training), the model (`model/`) and the checkpoints. `--resume` continues from the last checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.base.training_args import BatchSamplers
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

from lexforge import data, evaluation, models, runs, training
from lexforge.losses import CoSENTLoss

# Training takes a few minutes on two cores with these settings.
QUICK = training.TrainingSettings(
    steps=400, batch_size=64, gradient_accumulation_steps=1, learning_rate=5e-4, precision="fp32"
)


@dataclass(frozen=True)
class Config:
    """The settings of the run."""

    data: str = "docstrings"
    """What to train and test on: `docstrings`, a file of JSON lines, or `hf:organisation/name`."""

    model: str = "lexical"
    """A dense encoder, or `lexical`: a small one built from the training texts, at first a bag of words."""

    scale: float = 20.0
    """Factor on the cosine similarities in the loss, the inverse of a temperature."""

    output_dir: Path = Path("runs/cosent_sts")
    """The run directory; it must be new or empty, unless the run is resumed."""

    resume: bool = False
    """Whether to continue the run in `output_dir` from its last checkpoint."""

    max_seq_length: int = 128
    """Tokens per sentence, special tokens included; longer sentences are cut."""

    train: Annotated[training.TrainingSettings, tyro.conf.arg(name="")] = QUICK


def load_pairs(source: str) -> tuple[Dataset, Dataset]:
    """Load the pairs of the splits train and test; the columns are `sentence1`, `sentence2` and `score`."""
    splits = data.load_sts(source)
    for split in ("train", "test"):
        if split not in splits:
            raise ValueError(f"{source} has no split {split!r}; its splits are {list(splits)}")
    if len({row["score"] for row in splits["test"]}) == 1:
        raise ValueError(
            f"{source}: all scores of the split 'test' are equal; a correlation needs at least two different "
            "scores"
        )
    return Dataset.from_list(splits["train"]), Dataset.from_list(splits["test"])


def main(cfg: Config) -> None:
    """Train a dense encoder and compare it with itself before training."""
    # Processes. All of them train; only the main process measures and writes.
    process = runs.start_processes(cfg.train.seed)

    # Data. Training takes the split train, the measures take the split test.
    train, test = load_pairs(cfg.data)
    training.check_full_batch(len(train), cfg.train, process.num_processes)
    evaluator = EmbeddingSimilarityEvaluator(test["sentence1"], test["sentence2"], test["score"])
    process.print(f"{cfg.data}: {len(train)} training pairs, {len(test)} test pairs", flush=True)

    # Run directory. It is claimed after the data is loaded, so that bad data leaves no folder behind.
    runs.claim_run_directory(process, cfg.output_dir, cfg, resume=cfg.resume)

    # Encoder. A saved one keeps its similarity, a new one gets the cosine; loss and evaluator follow it.
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
    loss = CoSENTLoss(model, scale=cfg.scale, gather_across_devices=process.num_processes > 1)

    # Evaluation before training.
    initial = evaluator(model) if process.is_main_process else None

    # Training. A batch may hold a text twice, because no row is a negative of another.
    arguments = cfg.train.arguments(
        cfg.output_dir, SentenceTransformerTrainingArguments, batch_sampler=BatchSamplers.BATCH_SAMPLER
    )
    trainer = training.DenseTrainer(model, loss, args=arguments, train_dataset=train)
    trainer.train(resume_from_checkpoint=cfg.resume)
    if not process.is_main_process:
        return

    # Evaluation after training.
    metrics = {"initial": initial, "trained": evaluator(model)}

    # What the run leaves behind: the model, the numbers, and a table to read.
    model.save_pretrained(str(cfg.output_dir / "model"))
    runs.write_json(cfg.output_dir / "metrics.json", metrics)
    print(evaluation.metrics_table(metrics))
    print(f"\n{cfg.output_dir} holds the model and the numbers.")


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
