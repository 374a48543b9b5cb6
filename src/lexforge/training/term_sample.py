"""Texts like those that a model will encode, and the mean numbers of active terms that it gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sentence_transformers import SparseEncoder

from lexforge.common.types import TextKind
from lexforge.corpus import encode
from lexforge.training.columns import text_columns

SAMPLE, FEW = 3000, 500  # texts of each kind: the mean of so many is off by about 1 %, and by 2 to 3 %


def sample_texts(
    given: Mapping[TextKind, Sequence[str]],
    rows: Any,
    label_columns: Sequence[str] = (),
    *,
    most: int = SAMPLE,
    seed: int,
) -> dict[TextKind, list[str]]:
    """Draw queries and documents at random.

    Texts like those that the model will encode should be given: documents of the corpus, and queries of
    dev. Where fewer than `FEW` of a kind are given, texts of the training rows fill the sample up to so many,
    and where none are given, to the whole sample. A model has other numbers of terms for these, but a small
    sample is further off.

    Args:
        given: Texts by their kind.
        rows: A `Dataset`, an `IterableDataset` (its first `SAMPLE` rows are read), or several by name; read
            where few texts are given. The first text column holds queries, the others hold documents. A text
            counts once.
        label_columns: The names of labels, which are no texts.
        most: Largest number of texts of each kind.
        seed: Seed of the sample.

    Returns:
        At most so many texts of each kind.
    """
    random = np.random.default_rng(seed)
    kinds: tuple[TextKind, ...] = ("query", "document")
    sample = {kind: _some(given.get(kind, ()), most, random) for kind in kinds}
    enough = min(FEW, most)
    if any(len(texts) < enough for texts in sample.values()):
        trained = _texts_of_rows(rows, label_columns)
        for kind, texts in sample.items():
            known = set(texts)
            others = [text for text in trained[kind] if text not in known]
            missing = enough - len(texts) if texts else most
            texts += _some(others, max(0, missing), random)
    return sample


def mean_active_terms(
    model: SparseEncoder, texts: Mapping[TextKind, Sequence[str]], batch_size: int = 32
) -> dict[TextKind, float]:
    """Count the active terms of texts.

    Args:
        model: A SPLADE encoder; its mode (training or evaluation) is the same afterwards.
        texts: At least one text of each kind that is to be counted.
        batch_size: Number of texts per forward pass.

    Returns:
        The mean number of active terms per text, by the kind of text.
    """
    training = model.training
    # A stored entry of a SPLADE vector is above 0.
    means = {
        kind: encode(model, some, kind, batch_size=batch_size).nnz / len(some) for kind, some in texts.items()
    }
    model.train(training)
    return means


def _some(texts: Sequence[str], most: int, random: np.random.Generator) -> list[str]:
    """At most so many of the texts, in their order."""
    places = np.sort(random.permutation(len(texts))[:most])
    return [texts[place] for place in places]


def _texts_of_rows(rows: Any, label_columns: Sequence[str]) -> dict[TextKind, list[str]]:
    """The distinct queries and documents of training rows; of many rows, those of evenly spaced ones."""
    from datasets import Dataset  # missing where a loss is only timed

    texts: dict[TextKind, dict[str, None]] = {"query": {}, "document": {}}
    for dataset in rows.values() if isinstance(rows, dict) else [rows]:
        read = dataset if isinstance(dataset, Dataset) else Dataset.from_list(list(dataset.take(SAMPLE)))
        read = read.select(range(0, len(read), max(1, len(read) // (4 * SAMPLE))))
        cells = read[:]
        for place, column in enumerate(text_columns(cells, label_columns)):
            texts["document" if place else "query"].update(dict.fromkeys(cells[column]))
    return {kind: list(found) for kind, found in texts.items()}
