"""Measures of label sets against loops, scikit-learn and numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score

from lexforge.evaluation.multilabel import (
    LabelledVectors,
    best_threshold,
    evaluate_multilabel,
    f1_at,
    label_retrieval,
)


def random_split(seed: int, rows: int = 20, labels: int = 4) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(rows, labels)), (generator.random((rows, labels)) < 0.3).astype(int)


def naive_f1(pairs: list[tuple[bool, bool]]) -> float:
    """Twice the hits by the labels given and the labels held; pairs of (given, held)."""
    hits = sum(given and held for given, held in pairs)
    total = sum(given for given, _ in pairs) + sum(held for _, held in pairs)
    return 2 * hits / total if total else 0.0


@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_f1_is_that_of_a_loop(seed: int, columns: int) -> None:
    """Micro over all decisions, macro over the labels that occur; one label must not become two classes."""
    dev_scores, dev_labels = random_split(seed, labels=columns)
    scores, labels = random_split(seed + 100, labels=columns)
    if columns > 1:
        labels[:, -1] = 0  # a label that no test text has counts in micro F1 alone
    threshold = best_threshold(dev_scores, dev_labels)
    pairs = [
        [(bool(scores[row, label] >= threshold), bool(labels[row, label])) for row in range(20)]
        for label in range(columns)
    ]
    result = f1_at(threshold, scores, labels)
    present = [column for column in pairs if any(held for _, held in column)]
    assert result["micro_f1"] == pytest.approx(naive_f1([pair for column in pairs for pair in column]))
    assert result["macro_f1"] == pytest.approx(np.mean([naive_f1(column) for column in present]))


def test_f1_without_a_label_is_0() -> None:
    """Nothing to find and nothing found, or only mistakes: defined, and no warning."""
    threshold = best_threshold(*random_split(0))
    scores, nothing = np.full((3, 4), -9.0), np.zeros((3, 4), int)
    assert f1_at(threshold, scores, nothing) == {"micro_f1": 0.0, "macro_f1": 0.0}
    assert f1_at(threshold, -scores, nothing) == {"micro_f1": 0.0, "macro_f1": 0.0}


@pytest.mark.parametrize("seed", range(10))
def test_the_threshold_is_the_best_of_all(seed: int) -> None:
    """Tried one by one, with scores that repeat."""
    scores, labels = random_split(seed)
    scores = scores.round(1)
    labels[0, 0] = 1
    thresholds = np.unique(scores)
    f1 = {value: f1_score(labels, (scores >= value).astype(int), average="micro") for value in thresholds}
    assert f1[best_threshold(scores, labels)] == pytest.approx(max(f1.values()))


def test_threshold_by_hand() -> None:
    """Taking .9 and .8 hits both labels with one mistake among the ties of .8: F1 4/5."""
    scores, labels = np.array([[0.9, 0.8], [0.8, 0.1]]), np.array([[1, 1], [0, 0]])
    assert best_threshold(scores, labels) == 0.8
    assert f1_at(0.8, scores, labels) == pytest.approx({"micro_f1": 0.8, "macro_f1": (2 / 3 + 1) / 2})


@pytest.mark.parametrize("seed", range(3))
def test_retrieval_is_mean_average_precision(seed: int) -> None:
    """Against scikit-learn, query by query; a query without a relevant text is left out."""
    generator = np.random.default_rng(seed)
    corpus, queries = generator.normal(size=(30, 5)), generator.normal(size=(7, 5))
    corpus_labels = (generator.random((30, 4)) < 0.3).astype(int)
    query_labels = (generator.random((7, 4)) < 0.4).astype(int)
    query_labels[2] = 0
    expected = []
    for vector, labels in zip(queries, query_labels, strict=True):
        relevant = (corpus_labels @ labels > 0).astype(int)
        cosine = corpus @ vector / np.linalg.norm(corpus, axis=1) / np.linalg.norm(vector)
        if relevant.any():
            expected.append(average_precision_score(relevant, cosine))
    assert len(expected) < 7
    found = label_retrieval(
        LabelledVectors(corpus.astype(np.float32), corpus_labels),
        LabelledVectors(queries.astype(np.float32), query_labels),
    )
    assert found == pytest.approx(np.mean(expected), abs=1e-6)


def separable(rows: int, seed: int) -> LabelledVectors:
    """Vectors that are the sum of one direction a label, of any length."""
    generator = np.random.default_rng(seed)
    labels = (generator.random((rows, 3)) < 0.4).astype(int)
    labels[:, 2] |= labels.sum(axis=1) == 0
    vectors = labels @ np.eye(3, 8) + 0.01 * generator.normal(size=(rows, 8))
    return LabelledVectors((vectors * generator.uniform(1, 5, (rows, 1))).astype(np.float32), labels)


def test_what_can_be_told_apart_is() -> None:
    """On vectors made of their labels every measure is high; with shuffled labels none is."""
    train, dev, test = separable(80, 0), separable(40, 1), separable(40, 2)
    told = evaluate_multilabel(train, dev, test)
    assert list(told) == [
        "probe_micro_f1",
        "probe_macro_f1",
        "centroid_micro_f1",
        "centroid_macro_f1",
        "label_map",
    ]
    assert told["probe_micro_f1"] > 0.99
    assert told["probe_macro_f1"] > 0.99
    assert told["centroid_micro_f1"] > 0.8
    assert told["label_map"] > 0.9
    shuffled = LabelledVectors(train.vectors, np.roll(train.labels, 7, axis=0))
    guessed = evaluate_multilabel(shuffled, dev, test)
    assert all(guessed[name] < told[name] - 0.05 for name in told)


def test_a_label_that_all_or_no_training_texts_have() -> None:
    """Logistic regression needs two classes; the label is then given to all or none."""
    train, dev, test = separable(40, 0), separable(20, 1), separable(20, 2)
    labels = train.labels.copy()
    labels[:, 0], labels[:, 1] = 0, 1
    measured = evaluate_multilabel(LabelledVectors(train.vectors, labels), dev, test)
    assert all(0 <= value <= 1 for value in measured.values())


@pytest.mark.parametrize(
    ("vectors", "labels", "message"),
    [
        (np.zeros((2, 3)), np.zeros((3, 2)), r"\(2, 3\) and \(3, 2\)"),
        (np.zeros((0, 3)), np.zeros((0, 2)), "at least one"),
        (np.zeros(3), np.zeros((3, 2)), r"\(3,\)"),
        (np.zeros((1, 3)), np.array([[0, 2]]), "0 and 1"),
    ],
)
def test_splits_that_are_none_are_refused(vectors, labels, message: str) -> None:
    """At construction, where the mistake is."""
    with pytest.raises(ValueError, match=message):
        LabelledVectors(vectors, labels)


def test_splits_that_do_not_fit_each_other() -> None:
    """Another width, or nothing to find."""
    split = separable(5, 0)
    other = LabelledVectors(split.vectors[:, :4], split.labels)
    with pytest.raises(ValueError, match=r"\[\(4, 3\), \(8, 3\)\]"):
        evaluate_multilabel(split, other, split)
    with pytest.raises(ValueError, match="shares a label"):
        label_retrieval(split, LabelledVectors(split.vectors, np.zeros_like(split.labels)))
