"""How well vectors separate label sets: F1 of two classifiers made from them, and retrieval by label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers.base.evaluation.evaluator import BaseEvaluator
from sentence_transformers.base.model import BaseModel
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from lexforge.corpus import encode
from lexforge.evaluation.metrics import evaluate_run
from lexforge.retrieval import FaissIndex
from lexforge.retrieval.vectors import unit_rows


@dataclass(frozen=True)
class LabelledVectors:
    """The vectors of the texts of one split, and their label sets.

    Args:
        vectors: `[N, D]` float32, N at least 1.
        labels: `[N, L]` integers, 1 where a text has a label and 0 elsewhere.

    Raises:
        ValueError: If there is no row, the numbers of rows differ, or a label is neither 0 nor 1.
    """

    vectors: NDArray[np.float32]
    labels: NDArray[np.integer]

    def __post_init__(self) -> None:
        labels = np.asarray(self.labels)
        if self.vectors.ndim != 2 or labels.ndim != 2 or not 0 < len(self.vectors) == len(labels):
            raise ValueError(
                "vectors must be [N, D] and labels [N, L] with the same N, at least one; received the shapes "
                f"{self.vectors.shape} and {labels.shape}"
            )
        if not np.isin(labels, (0, 1)).all():
            raise ValueError(f"labels must hold only 0 and 1; received {np.unique(labels)[:10].tolist()}")
        object.__setattr__(self, "labels", labels.astype(np.int64))

    @classmethod
    def encoded(cls, model: BaseModel, columns: Mapping[str, Sequence[Any]]) -> LabelledVectors:
        """Encode the texts of a split.

        Args:
            model: A `SentenceTransformer`.
            columns: `text`, and `label` with a list of 0 and 1 for each text.
        """
        return cls(encode(model, list(columns["text"]), "document"), np.array(columns["label"]))

    @property
    def unit_vectors(self) -> NDArray[np.float32]:
        """The vectors scaled to length 1, `[N, D]`."""
        return unit_rows(self.vectors).astype(np.float32)


def evaluate_multilabel(
    train: LabelledVectors, dev: LabelledVectors, test: LabelledVectors
) -> dict[str, float]:
    """Measure micro and macro F1 of two classifiers made from the training vectors, and retrieval by label.

    All vectors are scaled to length 1; a zero vector stays as it is. One classifier is a logistic regression
    per label (`probe`), the other is the cosine to the mean of a label's vectors (`centroid`). For each, the
    one threshold over all labels is taken that has the best micro F1 on dev. For retrieval, each test text
    that has a label searches the training texts by cosine; the texts that share a label with it are relevant.

    Args:
        train: The split that fits the classifiers and is searched.
        dev: The split that the thresholds are chosen on.
        test: The split that is measured.

    Returns:
        `probe_micro_f1`, `probe_macro_f1`, `centroid_micro_f1`, `centroid_macro_f1` and `label_map`, all from
        0 to 1.

    Raises:
        ValueError: If the splits differ in the width of vectors or the number of labels, or no test text
            shares a label with a training text.
    """
    shapes = {(split.vectors.shape[1], split.labels.shape[1]) for split in (train, dev, test)}
    if len(shapes) > 1:
        raise ValueError(
            "all splits must have the same width of vectors and number of labels; received (width, labels) "
            f"{sorted(shapes)}"
        )
    probe = _probe_scores(train, (dev, test))
    centroids = unit_rows(train.labels.T @ train.unit_vectors).astype(np.float32)  # [L, D]
    nearest = [split.unit_vectors @ centroids.T for split in (dev, test)]
    metrics: dict[str, float] = {}
    for name, (dev_scores, test_scores) in (("probe", probe), ("centroid", nearest)):
        scores = f1_at(best_threshold(dev_scores, dev.labels), test_scores, test.labels)
        metrics |= {f"{name}_{key}": value for key, value in scores.items()}
    return metrics | {"label_map": label_retrieval(train, test)}


class MultiLabelEvaluator(BaseEvaluator):
    """Measures a dense encoder on dev by `evaluate_multilabel` while it trains; the thresholds come from dev.

    Args:
        train: The columns `text` and `label` of the texts that fit the classifiers and are searched.
        dev: The same columns of the texts that are measured.
    """

    def __init__(self, train: Mapping[str, Sequence[Any]], dev: Mapping[str, Sequence[Any]]) -> None:
        super().__init__()
        self.train, self.dev = train, dev
        self.name = "dev"  # the prefix of the measures
        self.primary_metric = f"{self.name}_label_map"

    def __call__(
        self, model: BaseModel, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Encode both splits and measure.

        Args:
            model: The encoder, a `SentenceTransformer`.
            output_path: Not used: the Trainer logs the measures, and nothing else is written.
            epoch: Epoch for the model card; -1 outside training.
            steps: Step for the model card; -1 outside training.

        Returns:
            The measures with `dev_` before each key.
        """
        train, dev = (LabelledVectors.encoded(model, columns) for columns in (self.train, self.dev))
        values = evaluate_multilabel(train, dev, dev)
        prefixed: dict[str, float] = self.prefix_name_to_metrics(values, self.name)
        self.store_metrics_in_model_card_data(model, prefixed, epoch, steps)
        return prefixed


def f1_at(threshold: float, scores: NDArray, labels: NDArray) -> dict[str, float]:
    """Measure micro and macro F1 where a text gets all labels whose score reaches a threshold.

    Args:
        threshold: The score from which a label is given.
        scores: `[N, L]` floats.
        labels: `[N, L]` integers 0 and 1.

    Returns:
        `micro_f1`, over all N x L decisions, and `macro_f1`, the mean over the labels that at least one text
        has (0 if there is none).
    """
    chosen = (scores >= threshold).astype(np.int64)  # [N, L]
    # Each F1 is that of a two-class problem, which scikit-learn defines for a single label too. A label that
    # no text has would enter the macro mean as 0, whatever the classifier does.
    micro = f1_score(labels.reshape(-1), chosen.reshape(-1), zero_division=0)
    present = np.flatnonzero(labels.any(axis=0))
    by_label = [f1_score(labels[:, label], chosen[:, label], zero_division=0) for label in present]
    return {"micro_f1": float(micro), "macro_f1": float(np.mean(by_label)) if by_label else 0.0}


def best_threshold(scores: NDArray, labels: NDArray) -> float:
    """Return the threshold with the best micro F1, if a text gets all labels whose score reaches it.

    Args:
        scores: `[N, L]` floats.
        labels: `[N, L]` integers 0 and 1.

    Returns:
        One of the scores; of several thresholds that are equally good, the highest.
    """
    # Every score is tried as the threshold: at the i-th highest score, i labels are given, and the running
    # sum counts those that are right.
    order = np.argsort(-scores, axis=None, kind="stable")  # [N * L]
    ranked = scores.reshape(-1)[order]
    hits = np.cumsum(labels.reshape(-1)[order])
    f1 = 2 * hits / (np.arange(1, len(ranked) + 1) + labels.sum())
    f1[:-1][ranked[1:] == ranked[:-1]] = -1.0  # a threshold gives all labels of an equal score, or none
    return float(ranked[np.argmax(f1)])


def label_retrieval(corpus: LabelledVectors, queries: LabelledVectors) -> float:
    """Measure the mean average precision of finding the texts that share a label with a query.

    Args:
        corpus: The texts that are searched, by cosine.
        queries: The texts that search; those without a relevant text in the corpus are left out.

    Returns:
        The mean over the queries.

    Raises:
        ValueError: If no query has a relevant text.
    """
    shared = queries.labels @ corpus.labels.T > 0  # [queries, corpus]
    asked = np.flatnonzero(shared.any(axis=1))
    if not len(asked):
        raise ValueError("no text that searches shares a label with one that is searched")
    ids = [str(row) for row in range(len(corpus.vectors))]
    hits = FaissIndex.build(corpus.vectors, ids, "cosine").search(queries.vectors[asked], len(ids))
    names = [f"query {row}" for row in asked]
    qrels = {
        name: {ids[row]: 1 for row in np.flatnonzero(relevant)}
        for name, relevant in zip(names, shared[asked], strict=True)
    }
    return evaluate_run(hits.to_run(names), qrels, ("AP",))["AP"]


def _probe_scores(train: LabelledVectors, others: tuple[LabelledVectors, ...]) -> list[NDArray]:
    """Return the probabilities of one logistic regression per label, `[N, L]` for each of the other splits.

    A logistic regression needs texts with and without the label. A label that all training texts have gets
    the probability 1, one that none has gets 0.
    """
    scores = [np.empty(split.labels.shape) for split in others]
    vectors, fitted = [split.unit_vectors for split in others], train.unit_vectors
    for label, column in enumerate(train.labels.T):
        constant = column.min() == column.max()
        probe = None if constant else LogisticRegression(C=10.0, max_iter=1000).fit(fitted, column)
        for rows, found in zip(vectors, scores, strict=True):
            found[:, label] = column[0] if probe is None else probe.predict_proba(rows)[:, 1]
    return scores
