"""Train a dense encoder on pairs of sentences with graded similarity by CoSENT, and measure Spearman's
correlation on the test split.

    accelerate launch recipes/cosent_sts.py

With no arguments it trains a small encoder from scratch, offline, on the docstrings of the installed Python
packages: the beginning of one beside the rest of another, scored by how near both stand in the code. On your
own data, JSON lines with `sentence1`, `sentence2`, `score` and `split` (train, test), plain or gzipped:

    accelerate launch recipes/cosent_sts.py --data FILE --model sentence-transformers/all-MiniLM-L6-v2 \
        --steps None --epochs 4 --learning-rate 2e-5

The run directory holds `config.json`, `env.json`, `metrics.json` (Spearman's and Pearson's correlation of
the cosine with the scores, before and after), `model/` and checkpoints; `--resume` continues from the last
one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.base.training_args import BatchSamplers
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from transformers import set_seed

from lexforge import data, evaluation, models, runs, training
from lexforge.losses import CoSENTLoss

# A few minutes on two cores.
QUICK = training.TrainingSettings(
    steps=400, batch_size=64, gradient_accumulation_steps=1, learning_rate=5e-4, precision="fp32"
)


@dataclass(frozen=True)
class Config:
    """Settings of the run."""

    data: str = "docstrings"  # `docstrings` (embedded), JSON lines, or `hf:organisation/name`
    model: str = "lexical"  # any encoder, or `lexical`: from scratch, starting as a bag of words
    scale: float = 20.0  # of the loss: the inverse of a temperature
    output_dir: Path = Path("runs/cosent_sts")  # must be new, unless `resume`
    resume: bool = False
    max_seq_length: int = 128  # tokens a sentence
    train: Annotated[training.TrainingSettings, tyro.conf.arg(name="")] = QUICK


def main(cfg: Config) -> None:
    """Data, encoder, training, evaluation."""
    process = runs.join_processes()
    set_seed(cfg.train.seed)
    splits = data.load_sts(cfg.data)
    if missing := [split for split in ("train", "test") if split not in splits]:
        raise ValueError(f"{cfg.data} has no split {missing[0]!r}; its splits are {list(splits)}")
    if len({row["score"] for row in splits["test"]}) < 2:
        raise ValueError(f"{cfg.data}: all scores of the split 'test' are equal; a correlation needs two")
    train = Dataset.from_list(splits["train"])
    test = Dataset.from_list(splits["test"])
    source = cfg.output_dir / "backbone" if cfg.model == "lexical" else cfg.model
    if process.is_main_process:
        runs.open_run(cfg.output_dir, asdict(replace(cfg, resume=False)), resume=cfg.resume)
        if cfg.model == "lexical" and not Path(source).is_dir():
            texts = sorted({*train["sentence1"], *train["sentence2"]})
            models.build_lexical_backbone(
                texts, source, max_seq_length=cfg.max_seq_length, seed=cfg.train.seed
            )
    process.wait_for_everyone()
    model = models.build_dense(source, max_seq_length=cfg.max_seq_length)

    evaluator = EmbeddingSimilarityEvaluator(
        test["sentence1"], test["sentence2"], test["score"], main_similarity="cosine"
    )
    initial = evaluator(model) if process.is_main_process else None
    trainer = training.DenseTrainer(
        model,
        CoSENTLoss(model, scale=cfg.scale, gather_across_devices=process.num_processes > 1),
        args=cfg.train.arguments(
            cfg.output_dir, SentenceTransformerTrainingArguments, batch_sampler=BatchSamplers.BATCH_SAMPLER
        ),
        train_dataset=train,
    )
    trainer.train(resume_from_checkpoint=cfg.resume)
    if initial is None:
        return

    model.save_pretrained(str(cfg.output_dir / "model"))
    metrics = {"initial": initial, "trained": evaluator(model)}
    runs.write_json(cfg.output_dir / "metrics.json", metrics)
    print(evaluation.metrics_table(metrics))


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
