"""What the documents say of each term of a vocabulary, and the loss of a SPLADE that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SparseEncoder

from lexforge.data import corpus_idf, stopword_ids
from lexforge.losses import NeuralSparseLoss, penalty_weights, word_weights
from lexforge.models import special_token_ids, vocabulary_size
from lexforge.settings import LossSettings


@dataclass(frozen=True)
class Terms:
    """The idf of each term in some documents, and the terms with rules of their own.

    Args:
        idf: `[V]` float32.
        special_ids: The special tokens.
        stopword_ids: The tokens of the stop words.
    """

    idf: NDArray[np.float32]
    special_ids: list[int]
    stopword_ids: list[int]

    @classmethod
    def count(cls, model: SparseEncoder, documents: Sequence[str], language: str) -> Terms:
        """Count the terms of documents.

        Args:
            model: A SPLADE encoder, whose tokenizer cuts the documents at its length.
            documents: The collection, one text per document.
            language: Language of the stop words (ISO 639-1), or a .txt file with one stop word per line.
        """
        idf = corpus_idf(
            documents, model.tokenizer, model.max_seq_length, vocabulary_size=vocabulary_size(model)
        )
        return cls(idf, special_token_ids(model.tokenizer), stopword_ids(model.tokenizer, language))

    def loss(self, model: SparseEncoder, settings: LossSettings, **options: Any) -> NeuralSparseLoss:
        """Make the loss of a SPLADE, whose penalties and own words follow from the terms.

        Args:
            model: The encoder.
            settings: The numbers of the loss.
            **options: Other arguments of `NeuralSparseLoss`.
        """
        return NeuralSparseLoss(
            model,
            penalty_weights=penalty_weights(settings, self.idf, self.special_ids, self.stopword_ids),
            special_token_ids=self.special_ids,
            word_weights=word_weights(self.idf, self.special_ids, self.stopword_ids),
            **options,
            **settings.arguments(),
        )


def case_notes(model: SparseEncoder) -> list[str]:
    """Tell that capital and small letters are other terms to an encoder.

    Args:
        model: A SPLADE encoder.

    Returns:
        One line if they are; no line for an uncased tokenizer.

    Source: Lionis et al. (arXiv 2601.17500).
    """
    if model.tokenizer.tokenize("Women") == model.tokenizer.tokenize("women"):
        return []
    return [
        "the tokenizer of the model keeps case, so that a word has several terms, which do not match: as a "
        "SPLADE an uncased model ranks better (arXiv 2601.17500)"
    ]
