"""Labels of texts: the scores, the choice by a threshold, and the file beside the encoder."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer, util

from lexforge.corpus import LabelClassifier, label_scores, load_label_classifier

TEXTS = ["sort a list", "open the file", "hash of a key", ""]
NAMES = ("sorting", "files", "keys")


@pytest.fixture
def classifier(tiny_dense: SentenceTransformer) -> LabelClassifier:
    """Each label has the vector of a text that says it."""
    vectors = tiny_dense.encode(["sort", "file", "key"])
    return LabelClassifier(tiny_dense, NAMES, vectors, None, threshold=0.9)


@pytest.mark.parametrize("with_bias", [False, True])
def test_scores_are_those_of_a_loop(with_bias: bool) -> None:
    """The cosine to a prototype, where a zero vector has none, or the logit of a linear layer."""
    generator = np.random.default_rng(0)
    vectors, weights = generator.normal(size=(5, 8)), generator.normal(size=(3, 8))
    vectors[4] = 0
    bias = generator.normal(size=3) if with_bias else None
    found = label_scores(vectors, weights, bias)
    for row, vector in enumerate(vectors):
        for label, weight in enumerate(weights):
            dot = sum(float(a) * float(b) for a, b in zip(vector, weight, strict=True))
            lengths = math.hypot(*vector) * math.hypot(*weight)
            expected = dot + bias[label] if bias is not None else dot / lengths if lengths else 0.0
            assert found[row, label] == pytest.approx(expected, abs=1e-6)  # rounded to float32
    assert np.linalg.norm(vectors[0]) > 1.5  # the given vectors are not scaled in place


def test_a_text_gets_the_labels_that_reach_the_threshold(classifier: LabelClassifier) -> None:
    """The best label stands first, and the threshold itself is reached."""
    scores = classifier.scores(TEXTS)
    classifier = replace(classifier, threshold=float(np.sort(scores[0])[1]))
    found = classifier.predict(TEXTS)
    assert len(found[0]) == 2
    assert list(found[0].values()) == sorted(found[0].values(), reverse=True)
    for text, labels in enumerate(found):
        assert labels == {
            name: scores[text, label]
            for label, name in enumerate(NAMES)
            if scores[text, label] >= classifier.threshold
        }
    assert replace(classifier, threshold=2.0).predict(TEXTS) == [{}, {}, {}, {}]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("inside", ["run", "run/model"])
def test_what_was_saved_predicts_the_same(
    inside: str, with_bias: bool, classifier: LabelClassifier, tmp_path: Path
) -> None:
    """By the run directory and by the folder of its model; the threshold keeps every bit."""
    bias = np.array([0.1, -0.1, 0.0], np.float32) if with_bias else None
    classifier = replace(classifier, threshold=float(np.float32(1) / 3), bias=bias)
    classifier.model.save_pretrained(str(tmp_path / "run" / "model"))
    classifier.save(tmp_path / "run" / "model")
    loaded = load_label_classifier(tmp_path / inside)
    loaded.model.to("cpu")  # where the other one is: a GPU sums in another order
    assert loaded.threshold == classifier.threshold
    assert loaded.predict(TEXTS) == classifier.predict(TEXTS)
    assert any(loaded.predict(TEXTS))


def test_a_model_without_a_classifier_is_refused(classifier: LabelClassifier, tmp_path: Path) -> None:
    """As are a file that was altered, and one of another encoder."""
    folder = tmp_path / "model"
    classifier.model.save_pretrained(str(folder))
    with pytest.raises(FileNotFoundError, match="saved without a classifier of labels"):
        load_label_classifier(folder)
    file = classifier.save(folder)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"label_classifier\.safetensors is no classifier of labels"):
        load_label_classifier(folder)
    with pytest.raises(ValueError, match=r"3 labels and embeddings of width 32 need .*\(3, 31\)"):
        replace(classifier, weights=classifier.weights[:, 1:])
    with pytest.raises(ValueError, match="the threshold must be a number; received nan"):
        replace(classifier, threshold=math.nan)


def test_prototypes_score_by_the_cosine_of_their_loss(tiny_dense: SentenceTransformer) -> None:
    """What training compares and what a prediction compares must be one thing."""
    from lexforge.losses import NWSLoss

    loss = NWSLoss(tiny_dense, np.zeros((3, 3)), aggregate="mean", queue_size=0)
    vectors = tiny_dense.encode(TEXTS)
    prototypes = loss.prototypes.detach()
    expected = util.cos_sim(torch.from_numpy(vectors), prototypes).numpy()
    found = label_scores(vectors, prototypes.numpy())
    np.testing.assert_allclose(found, expected, atol=1e-6)  # the loss adds up in float32
