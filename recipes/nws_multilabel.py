"""Train a dense encoder on texts with label sets by NWS, and measure what its vectors tell of the labels.

    accelerate launch recipes/nws_multilabel.py

Without arguments the recipe trains a small encoder from scratch on the docstrings of the installed Python
packages. It needs no network. The labels of a docstring are the packages that hold its object. Your own data
is a file of rows with `text`, `labels` and `split` (train, dev, test), such as JSON lines or a table. The
labels are a list of names, names with `|` between them, or columns of 0 and 1:

    accelerate launch recipes/nws_multilabel.py --data FILE --model MODEL --steps 1000 --learning-rate 1e-4

`--loss bce` trains the same encoder by binary cross-entropy with a linear head, for comparison.

The measures before and after training are:

- `probe_*`: micro and macro F1 of a linear probe
- `centroid_*`: micro and macro F1 of the nearest label means
- `label_map`: the mean average precision of finding texts that share a label
- `head_*`, after training only: the F1 of the classifier that the loss itself learned, which is the nearest
  prototypes or the linear head

The run directory holds:

- `config.json`: the settings
- `env.json`: the versions and the machine
- `metrics.json`: the measures
- `model/`: the encoder with its card
- `model/label_classifier.safetensors`: the classifier that the loss learned, the names of the labels and a
  threshold
- the checkpoints

By this classifier `lexforge predict --model RUN --texts FILE` labels other texts. `--resume` continues from
the last checkpoint. `--plan` takes a few steps, tells what the run would take, and writes nothing but caches.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro

from lexforge import corpus, data, evaluation, losses, models, report, runs, training
from lexforge.common.command_line import run_recipe
from lexforge.settings import (
    LEXICAL,
    NO_PREFIX,
    EvaluationSettings,
    MultiLabelOptions,
    RecipeSettings,
    TrainingSettings,
    check_positive,
)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

    from lexforge.losses.gradient_cache import MiniBatchSize

# Training takes a few minutes on two cores with these settings. The prototypes of the labels start from
# nothing, whatever the encoder knows.
SCRATCH = TrainingSettings(
    steps=300,
    batch_size=32,
    gradient_accumulation_steps=1,
    learning_rate=1e-3,
    precision="auto",
    mini_batch_size="auto",
)
PRETRAINED = replace(SCRATCH, learning_rate=3e-4)
LEFT_OPEN = SCRATCH.left_open()
LabelSimilarity = Literal["npmi", "jaccard", "none"]


@dataclass(frozen=True)
class LossOptions:
    """The loss and its numbers."""

    name: Annotated[Literal["nws", "bce"], tyro.conf.arg(name="loss")] = "nws"
    """The loss: `nws`, or `bce` for binary cross-entropy, which reads none of the numbers below."""

    label_similarity: Annotated[LabelSimilarity, tyro.conf.arg(name="similarity")] = "npmi"
    """Similarity of two labels; a negative with similar labels weighs less; `none` weighs all alike."""

    aggregate: Literal["mean", "max"] = "mean"
    """How the similarity of two sets of labels is made from the similarities of their labels."""

    alpha: float = 1.0
    """Weight of the positives that are texts; the prototypes of the labels take the rest."""

    beta: float = 1.0
    """Weight of the negatives that are texts; a negative that is a prototype has the weight 1."""

    temperature: float = 0.1
    """Temperature of the cosine similarities."""

    queue_size: int = 2048
    """Number of past texts in the queue; 0 for no queue."""

    momentum: float = 0.99
    """Share of its old weights that the key encoder keeps at each step."""


@dataclass(frozen=True)
class Config(RecipeSettings):
    """The settings of the run."""

    data: str = "docstrings"
    """What to train and test on: `docstrings`; rows of texts and labels (.parquet; .jsonl, .csv, .tsv, also
    .gz and .zst), a folder of them by split or of `save_to_disk`; or `hf:organisation/name:configuration`."""

    source: Annotated[MultiLabelOptions, NO_PREFIX] = MultiLabelOptions()

    model: str = "lexical"
    """A dense encoder, or `lexical`: a small one built from the training texts, at first a bag of words."""

    loss: Annotated[LossOptions, NO_PREFIX] = LossOptions()

    head_learning_rate: float | None = None
    """Learning rate of the prototypes (default 1e-2), or of the linear head of `bce` (default 1e-1)."""

    measured_texts: int = 2000
    """Number of texts drawn from each split for the measures; training takes all texts of its split. The test
    split is measured, and the thresholds of the classifiers come from dev."""

    output_dir: Path = Path("runs/nws_multilabel")

    # The loss rises while the texts are told apart better, so the log shows measures on dev beside it.
    evaluation: Annotated[EvaluationSettings, NO_PREFIX] = EvaluationSettings(eval_steps=0.5)

    train: Annotated[TrainingSettings, NO_PREFIX] = LEFT_OPEN


def resolve(cfg: Config) -> Config:
    """Fill in what follows from the model (steps, learning rate, tokens per text) and from the loss."""
    train = SCRATCH if cfg.model == LEXICAL else PRETRAINED
    cfg = cfg.follow_model(train, lambda: models.default_tokens(cfg.model))
    if cfg.head_learning_rate is None:
        cfg = replace(cfg, head_learning_rate=1e-1 if cfg.loss.name == "bce" else 1e-2)
    return cfg


def check(cfg: Config) -> None:
    """Refuse mistakes that show before torch is loaded, which takes seconds."""
    cfg.evaluation.check_measure(evaluation.MULTILABEL_METRICS)
    data.detect_rows(cfg.data, cfg.source)
    check_positive(head_learning_rate=cfg.head_learning_rate)
    if cfg.loss.name == "bce" and cfg.loss != LossOptions("bce"):
        raise ValueError(
            "--loss bce reads no number of nws, so that it would be ignored: leave out --similarity, "
            "--aggregate, --alpha, --beta, --temperature, --queue-size and --momentum"
        )


def refuse_equal_labels(texts: data.MultiLabelData) -> None:
    """Refuse training texts that all have the same labels: the loss is 0 from the first step on.

    Raises:
        DataError: If there is no text whose labels differ from those of another one.
    """
    found = {frozenset(row.labels) for row in texts.splits["train"]}
    if len(found) == 1:
        (labels,) = found
        shown = ", ".join(map(repr, sorted(labels))) or "none"
        raise data.DataError(
            f"all {len(texts.splits['train'])} training texts have the same labels, so there is nothing to "
            f"learn; received {shown}. Training needs texts with different labels"
        )


def refuse_foreign_labels(columns: dict[str, dict[str, list]]) -> None:
    """Refuse measured texts of which none shares a label with a training text: no measure could find any.

    Args:
        columns: Split -> its measured texts, with a column `label` of 0 and 1 for each label.

    Raises:
        DataError: If dev or test is such a split.
    """
    known = np.any(columns["train"]["label"], axis=0)  # [L]
    for split in ("dev", "test"):
        if not np.any(np.any(columns[split]["label"], axis=0) & known):
            raise data.DataError(
                f"none of the {len(columns[split]['label'])} measured texts of the split {split!r} shares a "
                "label with a training text, so nothing can be measured there"
            )


def binary_cross_entropy(
    model: SentenceTransformer, labels: np.ndarray, mini_batch_size: MiniBatchSize
) -> losses.EmbeddingLoss:
    """Build a loss with a linear head on the embedding that decides for each label by itself.

    Args:
        model: The encoder to train.
        labels: `[N, L]` of 0 and 1, the labels of the training texts. Their frequencies are the first
            predictions of the head.
        mini_batch_size: Rows that are encoded at once.

    Returns:
        The loss. Its class is defined here, because --help need not wait for torch.
    """
    import torch
    from torch import nn

    class BinaryCrossEntropyLoss(losses.EmbeddingLoss):
        """The mean of the cross-entropy over texts and labels."""

        def __init__(self) -> None:
            super().__init__(model, mini_batch_size)
            width = model.get_embedding_dimension()
            assert width is not None  # that of its pooling
            self.head = nn.Linear(width, labels.shape[1])
            frequency = torch.from_numpy(labels.mean(axis=0)).float()  # [L]
            with torch.no_grad():
                self.head.bias.copy_(frequency.clamp(1e-4, 1 - 1e-4).logit())

        def compute_loss(
            self, embeddings: list[Tensor], features: list | None, labels: Tensor | None
        ) -> Tensor:
            """Compute the mean of the cross-entropy over texts and labels."""
            assert labels is not None  # the rows have them
            scores = self.head(embeddings[0])  # [B, L]
            return nn.functional.binary_cross_entropy_with_logits(scores, labels.to(scores))

    return BinaryCrossEntropyLoss()


def build_loss(
    settings: LossOptions, model: SentenceTransformer, labels: np.ndarray, mini_batch_size: MiniBatchSize
) -> losses.EmbeddingLoss:
    """Build the loss from the labels of the training texts, `[N, L]` of 0 and 1."""
    if settings.name == "bce":
        return binary_cross_entropy(model, labels, mini_batch_size)
    label_similarity: np.ndarray  # [L, L]
    if settings.label_similarity == "none":
        label_similarity = np.zeros((labels.shape[1], labels.shape[1]))
    else:
        from lexforge.losses.functional import compute_label_pair_similarity

        label_similarity = compute_label_pair_similarity(labels, settings.label_similarity)
    return losses.NWSLoss(
        model,
        label_similarity,
        aggregate=settings.aggregate,
        alpha=settings.alpha,
        beta=settings.beta,
        temperature=settings.temperature,
        queue_size=settings.queue_size,
        momentum=settings.momentum,
        mini_batch_size=mini_batch_size,
    )


def classifier_of(loss: losses.EmbeddingLoss) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the weights `[L, D]` of the classifier that a loss has learned, and its bias `[L]`, if any."""
    if isinstance(loss, losses.NWSLoss):
        assert loss.prototypes is not None  # this recipe always learns them
        return loss.prototypes.numpy(force=True), None
    head: Any = loss.head
    return head.weight.numpy(force=True), head.bias.numpy(force=True)


def main(cfg: Config) -> None:
    """Train a dense encoder and compare it with itself before training."""
    check(cfg)
    # Here, because neither --help nor a mistake need wait for them.
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainingArguments
    from sentence_transformers.base.training_args import BatchSamplers

    # All processes train; only the main process measures and writes.
    cfg, process, stages, plan = training.begin_run(cfg, resolve, "SentenceTransformer", routes=False)

    # Data. Training takes all texts of its split; the measures take a sample of each split.
    stages.begin("read the data")
    splits = ["train", "dev", "test"]
    texts = data.load_label_sets(cfg.data, splits, cfg.source)
    for note in texts.notes:  # what was recognised, left out and counted in the files
        process.print(note)
    refuse_equal_labels(texts)
    train_columns = texts.columns("train")
    training.check_full_batch(len(train_columns["text"]), cfg.train, process.num_processes)
    if cfg.loss.name == "nws" and cfg.loss.queue_size:
        training.check_queue(cfg.loss.queue_size, cfg.train, process.num_processes)
    sample = texts.sample(cfg.measured_texts, cfg.train.seed)
    measured_columns = [sample.columns(split) for split in splits]
    refuse_foreign_labels(dict(zip(splits, measured_columns, strict=True)))
    process.print(
        f"{cfg.data}: {len(train_columns['text'])} training texts, {len(texts.label_names)} labels, "
        f"{len(measured_columns[2]['text'])} measured texts of the split test",
        flush=True,
    )

    # Run directory. It is claimed after the data is loaded, so that bad data leaves no folder behind.
    # A resumed run is refused if its data have changed.
    runs.claim_run_directory(cfg.output_dir, cfg, data=texts.digests())

    # Encoder. Its texts are compared by cosine.
    model = training.load_start(
        cfg, cfg.output_dir, train_columns["text"], process, stages, models.build_dense
    )

    # Loss. It takes the similarity of the labels, or their frequency, from all training texts.
    loss = build_loss(cfg.loss, model, np.array(train_columns["label"]), cfg.train.mini_batch_size)

    # Evaluation before training, and on dev during training.
    metrics = {}
    if process.is_main_process and cfg.evaluation.initial_evaluation:
        stages.begin("measure the model before training")
        train, dev, test = (
            evaluation.LabelledVectors.encoded(model, columns) for columns in measured_columns
        )
        metrics["initial"] = evaluation.evaluate_multilabel(train, dev, test)
    evaluator = None
    if cfg.evaluation.eval_steps is not None:
        evaluator = evaluation.MultiLabelEvaluator(measured_columns[0], measured_columns[1])

    # Training. The classifier of the loss learns faster than the encoder. A batch may hold a text twice,
    # because texts are negatives of each other by their labels.
    stages.begin("train")
    if note := report.loss_note(asdict(cfg)):
        process.print(note)
    rows = Dataset.from_dict(train_columns)
    trainer = training.DenseTrainer(
        model,
        loss,
        train_dataset=rows if plan is None else plan.some(rows),
        evaluator=evaluator,
        **training.trainer_options(
            cfg,
            SentenceTransformerTrainingArguments,
            batch_sampler=BatchSamplers.BATCH_SAMPLER,
            learning_rate_mapping={r"^(prototypes|head\.)": cfg.head_learning_rate},
        ),
    )
    if plan is not None:
        searched = sum(len(columns["text"]) for columns in measured_columns)
        process.print(plan.measure(trainer, train_columns["text"], searched=searched))
        return
    trainer.train(resume_from_checkpoint=cfg.resume)
    if not process.is_main_process:
        return

    # The model is saved before anything else can fail.
    stages.begin("save the model")
    training.save_model(model, cfg.output_dir / "model")

    stages.begin("measure the model after training")
    # Evaluation after training, of the vectors and of the classifier that the loss has learned.
    train, dev, test = (evaluation.LabelledVectors.encoded(model, columns) for columns in measured_columns)
    trained = evaluation.evaluate_multilabel(train, dev, test)
    weights, bias = classifier_of(loss)
    dev_scores, test_scores = (corpus.label_scores(split.vectors, weights, bias) for split in (dev, test))
    threshold = evaluation.best_threshold(dev_scores, dev.labels)
    head_f1 = evaluation.f1_at(threshold, test_scores, test.labels)
    trained |= {f"head_{name}": value for name, value in head_f1.items()}
    metrics["trained"] = trained

    # What the run leaves behind: the classifier, the card of the model, the numbers, and a page.
    stages.begin("write the results")
    classifier = corpus.LabelClassifier(model, texts.label_names, weights, bias, threshold)
    classifier.save(cfg.output_dir / "model")
    dev_f1 = evaluation.f1_at(threshold, dev_scores, dev.labels)
    training.finish_run(
        cfg,
        trainer,
        stages,
        task="labels",
        measured=len(measured_columns[2]["text"]),
        metrics=metrics,
        settings={"loss": cfg.loss.name, "learning rate of the classifier": cfg.head_learning_rate},
        examples=(
            f"\nThe classifier of the loss gives a label from the score {threshold:.4g} on, chosen on dev: "
            f"micro F1 {dev_f1['micro_f1']:.4f} and macro F1 {dev_f1['macro_f1']:.4f} there.\n"
            f"lexforge predict --model {shlex.quote(str(cfg.output_dir))} --texts FILE"
        ),
    )


if __name__ == "__main__":
    run_recipe(main, Config, __doc__, resolve=resolve)
    runs.leave_processes()
