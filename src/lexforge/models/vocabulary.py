"""Which terms a SPLADE encoder may use: a restriction in the decoder's bias, saved with the weights."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from sentence_transformers import SparseEncoder
from transformers import PreTrainedTokenizerBase

from lexforge.models.structure import splade_decoders

BANNED_BIAS = -1e4
"""Far below any logit, and finite in float16."""


def restrict_output_vocabulary(model: SparseEncoder, banned_ids: Iterable[int]) -> SparseEncoder:
    """Make terms impossible, in place: their decoder bias becomes `BANNED_BIAS`, so their activation stays 0.

    The restriction is part of the weights, so it is saved, loaded and exported with them. Training keeps it,
    because a term that no text activates gets no gradient through the relu, and the Trainer applies no weight
    decay to biases.

    Args:
        model: A SPLADE encoder, fused or plain; with a `Router`, each of its masked language models is
            restricted.
        banned_ids: Ids of the terms to ban, in [0, V). An empty list changes nothing.

    Returns:
        `model`.

    Raises:
        ValueError: If the decoder has no bias, if an id lies outside the vocabulary, or if no term would
            remain.
    """
    ids = sorted(set(map(int, banned_ids)))
    decoders = splade_decoders(model)
    for decoder in decoders:
        if getattr(decoder, "bias", None) is None:
            raise ValueError(
                "the decoder of this masked language model has no bias to carry the restriction (for "
                "ModernBERT, load it with decoder_bias=True)"
            )
        size = len(decoder.bias)
        if ids and not 0 <= ids[0] <= ids[-1] < size:
            wrong = [term for term in ids if not 0 <= term < size]
            raise ValueError(f"term ids must lie in [0, {size}); received {wrong[:5]}")
        if len(ids) == size:
            raise ValueError(f"received all {size} terms to ban; nothing would be left to search with")
    with torch.no_grad():
        for decoder in decoders:
            decoder.bias[torch.tensor(ids, dtype=torch.long, device=decoder.bias.device)] = BANNED_BIAS
    return model


def special_token_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of [CLS], [SEP] and the like, which stand in every text and so are useless to a search.

    Args:
        tokenizer: The model's tokenizer.

    Returns:
        Sorted ids.
    """
    return sorted(tokenizer.all_special_ids)


def unseen_term_ids(document_frequency: ArrayLike) -> list[int]:
    """Return the terms that occur in no document.

    Args:
        document_frequency: `[V]`, how many documents hold each term; >= 0.

    Returns:
        Sorted ids.

    Raises:
        ValueError: If the frequencies are not a list of numbers, or if one is negative or not finite.
    """
    frequency = np.asarray(document_frequency)
    if frequency.ndim != 1 or not np.isfinite(frequency).all() or (frequency < 0).any():
        raise ValueError(
            f"document_frequency must be [V], finite and >= 0; received shape {frequency.shape}"
            + (f" with smallest value {frequency.min()}" if frequency.size else "")
        )
    return np.flatnonzero(frequency == 0).tolist()


def foreign_script_ids(tokenizer: PreTrainedTokenizerBase, scripts: Sequence[str]) -> list[int]:
    """Return the terms that are not written in the named scripts.

    A term is written in them if it has a letter or digit and each of its letters, digits and vowel signs
    belongs to one of them. Punctuation is therefore returned, and so are the pieces of a byte-level tokenizer
    that are no whole character.

    Args:
        tokenizer: The model's tokenizer.
        scripts: First words of Unicode character names, for example `("HANGUL", "LATIN", "DIGIT")`; the name
            of Han characters is "CJK".

    Returns:
        Sorted ids.

    Raises:
        ValueError: If no script is named, or one in which no term of the vocabulary is written (for example
            a misspelt one).
    """
    allowed = set(scripts)
    texts = tokenizer.batch_decode([[term] for term in range(len(tokenizer))])
    scripts_of = [_scripts(text) for text in texts]
    unknown = allowed.difference(*scripts_of)
    if unknown or not allowed:
        raise ValueError(
            f"received scripts in which no term is written: {sorted(unknown)}; the scripts of this "
            f"vocabulary are {sorted(set().union(*scripts_of))}"
        )
    return [term for term, found in enumerate(scripts_of) if not found or not found <= allowed]


def _scripts(text: str) -> set[str]:
    """Return the first word of the name of every letter, digit and vowel sign of a text."""
    names = (
        unicodedata.name(character, "UNNAMED").split()[0]
        for character in unicodedata.normalize("NFKC", text)
        if unicodedata.category(character)[0] in "LNM"
    )
    return {name for name in names if name != "COMBINING"}  # a combining accent belongs to any script
