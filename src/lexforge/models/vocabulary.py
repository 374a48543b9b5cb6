"""Which terms a SPLADE encoder should not use; `restrict_output_vocabulary` bans them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from transformers import PreTrainedTokenizerBase


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
