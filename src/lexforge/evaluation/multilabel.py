"""How well vectors tell label sets: F1 of a linear probe and of nearest prototypes, retrieval by label."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from lexforge.evaluation.metrics import evaluate_run
from lexforge.retrieval.faiss import FaissIndex

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class LabelledVectors:
    """The vectors of the texts of one split, and their label sets.

    Args:
        vectors: `[N, D]` float32.
        labels: `[N, L]` of 0 and 1.

    Raises:
        ValueError: No row, another number of rows in the two, or labels other than 0 and 1.
    """

    vectors: Matrix
    labels: NDArray[np.integer]

    def __post_init__(self) -> None:
        labels = np.asarray(self.labels)
        if self.vectors.ndim != 2 or labels.ndim != 2 or not 0 < len(self.vectors) == len(labels):
            raise ValueError(
                f"vectors [N, D] and labels [N, L] of as many texts, at least one, are needed; received "
                f"{self.vectors.shape} and {labels.shape}"
            )
        if not np.isin(labels, (0, 1)).all():
            raise ValueError("labels must hold 0 and 1 alone")
        object.__setattr__(self, "labels", labels.astype(np.int64))

    @property
    def unit_vectors(self) -> Matrix:
        """The vectors scaled to length 1."""
        return unit_rows(self.vectors)


def evaluate_multilabel(
    train: LabelledVectors, dev: LabelledVectors, test: LabelledVectors
) -> dict[str, float]:
    """Micro and macro F1 of two classifiers made of the training vectors, and retrieval by label.

    Vectors are normalised here; a zero vector stays. The classifiers are a logistic regression a label
    (`probe`) and the cosine to the mean of a label's vectors (`centroid`). One threshold over all labels is
    chosen for each on dev; see `f1_on_test`. For retrieval each test text that has a label searches the
    training texts by cosine; those that share a label with it are relevant.

    Args:
        train: Fits the classifiers and is searched.
        dev: Gives the thresholds.
        test: Is measured.

    Returns:
        `probe_micro_f1`, `probe_macro_f1`, `centroid_micro_f1`, `centroid_macro_f1`, `label_map`.

    Raises:
        ValueError: The splits differ in width or number of labels, or no test text shares a label with a
            training text.
    """
    shapes = {(split.vectors.shape[1], split.labels.shape[1]) for split in (train, dev, test)}
    if len(shapes) > 1:
        raise ValueError(f"the splits differ in width of vectors and number of labels: {sorted(shapes)}")
    probe = _probe_scores(train, (dev, test))
    centroids = unit_rows(train.labels.T @ train.unit_vectors)
    nearest = [split.unit_vectors @ centroids.T for split in (dev, test)]
    metrics: dict[str, float] = {}
    for name, (dev_scores, test_scores) in (("probe", probe), ("centroid", nearest)):
        scores = f1_on_test(dev_scores, dev.labels, test_scores, test.labels)
        metrics |= {f"{name}_{key}": value for key, value in scores.items()}
    return metrics | {"label_map": label_retrieval(train, test)}


def f1_on_test(
    dev_scores: NDArray, dev_labels: NDArray, test_scores: NDArray, test_labels: NDArray
) -> dict[str, float]:
    """Micro and macro F1 on test at the threshold of the best micro F1 on dev.

    Args:
        dev_scores: `[N, L]`, higher where a label is likelier.
        dev_labels: `[N, L]` of 0 and 1.
        test_scores: `[M, L]`.
        test_labels: `[M, L]` of 0 and 1.

    Returns:
        `micro_f1`, over all decisions, and `macro_f1`, the mean over the labels that a test text has.
    """
    chosen = test_scores >= best_threshold(dev_scores, dev_labels)
    hits = (chosen & (test_labels == 1)).sum(axis=0)
    sizes = chosen.sum(axis=0) + (test_labels == 1).sum(axis=0)
    present = test_labels.any(axis=0)
    micro = 2 * hits.sum() / max(int(sizes.sum()), 1)
    macro = (2 * hits[present] / sizes[present]).mean() if present.any() else 0.0
    return {"micro_f1": float(micro), "macro_f1": float(macro)}


def best_threshold(scores: NDArray, labels: NDArray) -> float:
    """The score from which on a label is given, with the best micro F1; the highest one of several.

    Args:
        scores: `[N, L]`.
        labels: `[N, L]` of 0 and 1.
    """
    order = np.argsort(-scores, axis=None, kind="stable")
    ranked = scores.reshape(-1)[order]
    hits = np.cumsum(labels.reshape(-1)[order])
    f1 = 2 * hits / (np.arange(1, len(ranked) + 1) + labels.sum())
    f1[:-1][ranked[1:] == ranked[:-1]] = -1.0  # equal scores are taken together
    return float(ranked[np.argmax(f1)])


def label_retrieval(corpus: LabelledVectors, queries: LabelledVectors) -> float:
    """Mean average precision of finding the texts that share a label.

    Args:
        corpus: Is searched whole, by cosine.
        queries: Those without a relevant text in the corpus are left out.

    Returns:
        The mean over the queries.

    Raises:
        ValueError: No query has a relevant text.
    """
    shared = queries.labels @ corpus.labels.T > 0
    asked = np.flatnonzero(shared.any(axis=1))
    if not len(asked):
        raise ValueError("no text of the test split shares a label with one of the training split")
    ids = [str(row) for row in range(len(corpus.vectors))]
    hits = FaissIndex.build(corpus.vectors, ids, "cosine").search(queries.vectors[asked], len(ids))
    names = [f"query {row}" for row in asked]
    qrels = {
        name: {ids[row]: 1 for row in np.flatnonzero(relevant)}
        for name, relevant in zip(names, shared[asked], strict=True)
    }
    return evaluate_run(hits.to_run(names), qrels, ("AP",))["AP"]


def unit_rows(rows: NDArray) -> Matrix:
    """Rows of length 1; a zero row stays."""
    norms = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return (rows / np.where(norms > 0, norms, 1.0)).astype(np.float32)


def _probe_scores(train: LabelledVectors, others: tuple[LabelledVectors, ...]) -> list[NDArray]:
    """Probabilities of one logistic regression a label; the share itself where all or no texts have it."""
    scores = [np.empty(split.labels.shape) for split in others]
    vectors = [split.unit_vectors for split in others]
    for label, column in enumerate(train.labels.T):
        constant = column.min() == column.max()
        probe = (
            None if constant else LogisticRegression(C=10.0, max_iter=1000).fit(train.unit_vectors, column)
        )
        for rows, found in zip(vectors, scores, strict=True):
            found[:, label] = column[0] if probe is None else probe.predict_proba(rows)[:, 1]
    return scores
