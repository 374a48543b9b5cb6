"""Train a dense encoder on texts with label sets by NWS, and measure what its vectors tell of the labels.

    accelerate launch recipes/nws_multilabel.py

With no arguments it trains a small encoder from scratch on the docstrings of the installed Python packages,
labelled with the packages their objects live in, offline. On your own data, a file of JSON lines with `id`,
`text`, `labels` (a list of names) and `split` (train, dev, test), plain or gzipped:

    accelerate launch recipes/nws_multilabel.py --data FILE --model MODEL --steps 1000 --learning-rate 1e-4

`--loss bce` trains the same encoder by binary cross-entropy with a linear head, to compare with. Measured
before and after are micro and macro F1 of a linear probe and of the nearest label means, and the mean average
precision of finding texts that share a label; after training the F1 of the loss's own classifier (`head_*`:
nearest prototypes, or the linear head). The run directory holds `config.json`, `env.json`, `metrics.json`,
`model/`, `head.safetensors` and checkpoints; `--resume` continues from the last one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import tyro
from datasets import Dataset
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.base.training_args import BatchSamplers
from torch import Tensor, nn
from transformers import set_seed

from lexforge import data, evaluation, losses, models, runs, training
from lexforge.corpus.encoding import encode
from lexforge.losses.functional import compute_label_pair_similarity

# A few minutes on two cores.
QUICK = training.TrainingSettings(
    steps=300, batch_size=32, gradient_accumulation_steps=1, learning_rate=1e-3, precision="fp32"
)


@dataclass(frozen=True)
class Config:
    """Settings of the run."""

    data: str = "docstrings"  # `docstrings` (embedded), or a file of JSON lines
    model: str = "lexical"  # a SentenceTransformer, or `lexical`: from scratch, starting as a bag of words
    loss: Literal["nws", "bce"] = "nws"
    similarity: Literal["npmi", "jaccard", "none"] = "npmi"  # of labels; `none` weighs all negatives alike
    aggregate: Literal["mean", "max"] = "mean"
    alpha: float = 1.0
    beta: float = 1.0
    temperature: float = 0.1
    queue_size: int = 2048  # 0 for none
    momentum: float = 0.99
    head_learning_rate: float = 1e-2  # of the prototypes, or of the linear head (better 1e-1)
    measured_texts: int = 2000  # of each split, drawn by `train.seed`; training takes all
    measured_split: Literal["dev", "test"] = "test"  # thresholds come from dev in any case
    output_dir: Path = Path("runs/nws_multilabel")  # must be new, unless `resume`
    resume: bool = False
    max_seq_length: int = 128  # tokens a text
    train: Annotated[training.TrainingSettings, tyro.conf.arg(name="")] = QUICK


class BinaryCrossEntropyLoss(losses.EmbeddingLoss):
    """A linear head on the embedding: one independent decision a label, biased to its frequency at first."""

    def __init__(self, model: SentenceTransformer, labels: np.ndarray) -> None:
        super().__init__(model)
        self.head = nn.Linear(model.get_embedding_dimension(), labels.shape[1])
        frequency = torch.from_numpy(labels.mean(axis=0)).float().clamp(1e-4, 1 - 1e-4)
        nn.init.zeros_(self.head.bias).data.add_(frequency.logit())

    def compute_loss(self, embeddings: list[Tensor], features: list | None, labels: Tensor | None) -> Tensor:
        """The mean over texts and labels."""
        scores = self.label_scores(embeddings[0])
        return nn.functional.binary_cross_entropy_with_logits(scores, labels.to(scores))

    def label_scores(self, embeddings: Tensor) -> Tensor:
        return self.head(embeddings)


def build_loss(cfg: Config, model: SentenceTransformer, labels: np.ndarray) -> losses.EmbeddingLoss:
    """The loss, with the similarity of the labels over the training split."""
    if cfg.loss == "bce":
        return BinaryCrossEntropyLoss(model, labels)
    similarity = np.zeros((labels.shape[1], labels.shape[1]))
    if cfg.similarity != "none":
        similarity = compute_label_pair_similarity(labels, cfg.similarity)
    names = ("aggregate", "alpha", "beta", "temperature", "queue_size", "momentum")
    return losses.NWSLoss(model, similarity, **{name: getattr(cfg, name) for name in names})


def main(cfg: Config) -> None:
    """Data, encoder, training, evaluation."""
    process = runs.join_processes()
    set_seed(cfg.train.seed)
    texts = data.load_docstring_topics() if cfg.data == "docstrings" else data.load_multilabel(cfg.data)
    columns = texts.columns("train")
    sample = texts.sample(cfg.measured_texts, cfg.train.seed)
    measured = [sample.columns(split) for split in ("train", "dev", cfg.measured_split)]
    folder, lexical = cfg.output_dir, cfg.model == "lexical"
    source = folder / "backbone" if lexical else cfg.model
    if process.is_main_process:
        runs.open_run(folder, asdict(replace(cfg, resume=False)), resume=cfg.resume)
        if lexical and not (folder / "backbone").is_dir():
            settings = {"max_seq_length": cfg.max_seq_length, "seed": cfg.train.seed}
            models.build_lexical_backbone(columns["text"], source, **settings)
    process.wait_for_everyone()
    model = models.build_dense(source, max_seq_length=cfg.max_seq_length)

    def encoded() -> list[evaluation.LabelledVectors]:
        vectors = [encode(model, column["text"], "document") for column in measured]
        labels = [np.array(column["label"]) for column in measured]
        return [evaluation.LabelledVectors(*split) for split in zip(vectors, labels, strict=True)]

    initial = evaluation.evaluate_multilabel(*encoded()) if process.is_main_process else None
    loss = build_loss(cfg, model, np.array(columns["label"]))
    arguments = cfg.train.arguments(
        folder,
        SentenceTransformerTrainingArguments,
        batch_sampler=BatchSamplers.BATCH_SAMPLER,
        learning_rate_mapping={r"^(prototypes|head\.)": cfg.head_learning_rate},
    )
    trainer = training.DenseTrainer(model, loss, args=arguments, train_dataset=Dataset.from_dict(columns))
    trainer.train(resume_from_checkpoint=cfg.resume)
    if initial is None:
        return

    model.save_pretrained(str(folder / "model"))
    state = {name: value for name, value in loss.state_dict().items() if name.startswith(("proto", "head"))}
    save_file(state, folder / "head.safetensors", {"labels": json.dumps(texts.label_names)})
    splits = encoded()
    with torch.no_grad():
        scores = [loss.cpu().label_scores(torch.from_numpy(split.vectors)).numpy() for split in splits]
    head = evaluation.f1_on_test(scores[1], splits[1].labels, scores[2], splits[2].labels)
    trained = evaluation.evaluate_multilabel(*splits) | {f"head_{name}": f1 for name, f1 in head.items()}
    metrics = {"initial": initial, "trained": trained}
    runs.write_json(folder / "metrics.json", metrics)
    print(evaluation.metrics_table(metrics))


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
