"""Labels of texts by an encoder and the classifier that its training on label sets has left beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import load_file_path

from lexforge.corpus.encoding import encode
from lexforge.models.load import load_encoder
from lexforge.models.names import checked_name
from lexforge.retrieval.vectors import unit_rows
from lexforge.storage.manifest import MALFORMED
from lexforge.storage.tensors import read_tensors, write_tensors

CLASSIFIER_FILE = "label_classifier.safetensors"
FORMAT = "lexforge-label-classifier"


def label_scores(
    vectors: NDArray[np.float32], weights: NDArray[np.float32], bias: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Score each label for each text.

    The sums are those of float64, so that a score hardly ever depends on which texts are scored together.

    Args:
        vectors: `[N, D]` float, of texts.
        weights: `[L, D]` float: a prototype per label, or the rows of a linear layer.
        bias: `[L]` float of a linear layer; None scores by the cosine to the prototypes.

    Returns:
        `[N, L]` float32; a higher score says that a text rather has the label.
    """
    if bias is not None:
        return (vectors.astype(np.float64) @ weights.astype(np.float64).T + bias).astype(np.float32)
    return (unit_rows(vectors) @ unit_rows(weights).T).astype(np.float32)


@dataclass(frozen=True)
class LabelClassifier:
    """An encoder with one vector per label, and the score from which a text gets a label.

    Args:
        model: The encoder that was trained with the classifier.
        label_names: The names of the L labels; a name's position is its column.
        weights: `[L, D]` float32, as for `label_scores`.
        bias: `[L]` float32 or None, as for `label_scores`.
        threshold: A text gets every label whose score reaches this number.

    Raises:
        ValueError: If the numbers of labels or the widths do not fit together, or the threshold is NaN.
    """

    model: SentenceTransformer
    label_names: tuple[str, ...]
    weights: NDArray[np.float32]
    bias: NDArray[np.float32] | None
    threshold: float

    def __post_init__(self) -> None:
        labels, width = len(self.label_names), self.model.get_embedding_dimension()
        expected = [(labels, width), (labels,)]
        received = [self.weights.shape, (labels,) if self.bias is None else self.bias.shape]
        if received != expected:
            raise ValueError(
                f"{labels} labels and embeddings of width {width} need weights and bias of the shapes "
                f"{expected}; received {received}"
            )
        if math.isnan(self.threshold):
            raise ValueError(f"the threshold must be a number; received {self.threshold}")

    def scores(self, texts: Sequence[str], *, batch_size: int = 32) -> NDArray[np.float32]:
        """Score each label for each text.

        Args:
            texts: At least one text.
            batch_size: Texts per forward pass.

        Returns:
            `[N, L]` float32: cosines to prototypes, or the logits of a linear layer.
        """
        vectors = encode(self.model, texts, "document", batch_size=batch_size)
        return label_scores(vectors, self.weights, self.bias)

    def predict(self, texts: Sequence[str], *, batch_size: int = 32) -> list[dict[str, float]]:
        """Give each text the labels whose score reaches the threshold.

        Args:
            texts: At least one text.
            batch_size: Texts per forward pass.

        Returns:
            For each text label -> score, the highest score first; a text may get no label.
        """
        found = []
        for scores in self.scores(texts, batch_size=batch_size):  # each [L]
            best_first = np.argsort(-scores, kind="stable")
            kept = best_first[scores[best_first] >= self.threshold]
            found.append({self.label_names[label]: float(scores[label]) for label in kept})
        return found

    def save(self, folder: str | Path) -> Path:
        """Write the classifier into the folder of the saved encoder, where `load_label_classifier` finds it.

        Args:
            folder: The folder; the encoder itself is not written.

        Returns:
            The file.
        """
        file = Path(folder) / CLASSIFIER_FILE
        arrays = {"weights": self.weights} | ({} if self.bias is None else {"bias": self.bias})
        fields = {"label_names": list(self.label_names), "threshold": self.threshold}
        write_tensors(file, FORMAT, fields, {name: torch.from_numpy(rows) for name, rows in arrays.items()})
        return file


def load_label_classifier(name: str | Path) -> LabelClassifier:
    """Load an encoder with the classifier that the recipe `nws_multilabel` saved with it.

    Args:
        name: A run directory, the folder of its model, or the name of that model on the hub.

    Returns:
        The classifier.

    Raises:
        FileNotFoundError: If there is no such model, or none that was saved with a classifier.
        ValueError: If the file of the classifier is damaged, or does not fit the encoder.
    """
    model_name = checked_name(name)
    file = load_file_path(model_name, CLASSIFIER_FILE)
    if file is None:
        raise FileNotFoundError(
            f"{model_name} was saved without a classifier of labels: {CLASSIFIER_FILE} is missing. "
            "The recipe nws_multilabel writes it at its end"
        )
    try:
        fields, tensors = read_tensors(Path(file).resolve(), FORMAT)  # the hub's cache holds links
        names, threshold = tuple(fields["label_names"]), float(fields["threshold"])
        weights, bias = tensors["weights"].numpy(), tensors.get("bias")
    except MALFORMED as error:
        raise ValueError(f"{file} is no classifier of labels, or damaged: {error}") from error
    model = cast(SentenceTransformer, load_encoder(model_name))  # as its training saved it
    return LabelClassifier(model, names, weights, None if bias is None else bias.numpy(), threshold)
