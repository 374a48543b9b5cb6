"""Texts like those that a model will encode, and the mean numbers of active terms that it gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from sentence_transformers import SparseEncoder

from lexforge.common.evaluation_mode import evaluation_mode
from lexforge.common.types import TEXT_KINDS, TextKind
from lexforge.corpus import encode
from lexforge.models.structure import vocabulary_size
from lexforge.sparsity.constants import BLOCK_ENTRIES, FEW, SAMPLE


def sample_texts(
    given: Mapping[TextKind, Sequence[str]],
    trained: Callable[[], Mapping[TextKind, Sequence[str]]],
    *,
    most: int = SAMPLE,
    seed: int,
) -> dict[TextKind, list[str]]:
    """Draw queries and documents at random.

    Texts like those that the model will encode should be given: documents of the corpus, and queries of
    dev. Where fewer than 500 of a kind are given, texts of the training rows fill the sample up to so many,
    and where none are given, to the whole sample. A model has other numbers of terms for these, but a small
    sample is further off.

    Args:
        given: Texts by their kind.
        trained: Returns the distinct queries and documents of training; called where few texts are given.
        most: Largest number of texts of each kind.
        seed: Seed of the sample.

    Returns:
        At most so many texts of each kind.
    """
    random = np.random.default_rng(seed)
    sample = {kind: some_texts(given.get(kind, ()), most, random) for kind in TEXT_KINDS}
    enough = min(FEW, most)
    if any(len(texts) < enough for texts in sample.values()):
        others = trained()
        for kind, texts in sample.items():
            known = set(texts)
            new = [text for text in others[kind] if text not in known]
            missing = enough - len(texts) if texts else most
            texts += some_texts(new, max(0, missing), random)
    return sample


def some_texts(texts: Sequence[str], most: int, random: np.random.Generator) -> list[str]:
    """Draw texts at random, each with the same chance.

    Args:
        texts: The texts.
        most: Largest number of texts.
        random: Draws them.

    Returns:
        At most so many of the texts, in their order.
    """
    places = np.sort(random.permutation(len(texts))[:most])
    return [texts[place] for place in places]


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
    with evaluation_mode(model):  # a stored entry of a SPLADE vector is above 0
        return {
            kind: sum(encode(model, part, kind, batch_size=batch_size).nnz for part in in_blocks(model, some))
            / len(some)
            for kind, some in texts.items()
        }


def in_blocks(model: SparseEncoder, texts: Sequence[str]) -> Iterator[list[str]]:
    """Divide texts into parts whose vectors fit into memory even where they activate every term.

    Args:
        model: The SPLADE encoder that is to encode them.
        texts: The texts.

    Yields:
        The texts of a part, which have similar lengths; the longest come first.
    """
    size = max(1, BLOCK_ENTRIES // vocabulary_size(model))
    by_length = sorted(texts, key=len, reverse=True)
    for start in range(0, len(by_length), size):
        yield by_length[start : start + size]
