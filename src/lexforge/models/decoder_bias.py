"""What can be written into the decoder's bias of an encoder: the idf of its terms, and a threshold."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from sentence_transformers import SparseEncoder

from lexforge.models.structure import splade_decoders


def shift_bias_by_idf(
    model: SparseEncoder, document_frequency: ArrayLike, documents: int, strength: float
) -> SparseEncoder:
    """Make terms that many documents activate harder to activate, and rare ones easier, in place.

    A pretrained SPLADE encoder knows which terms are frequent in the collection that it was trained on, and
    not which are in this one: there it activates some terms in nearly every document. They tell documents
    apart no longer, and most of the cost of a search (FLOPS) is theirs. The logit of term j grows by

        strength * (idf_j - mean),    at most 2 * strength,    idf_j = ln((N + 1) / (df_j + 1/2)),

    where df_j of N documents activate term j, and the mean is that of the active terms of a document. The
    shift is part of the weights, so plain sentence-transformers loads and saves it.

    Args:
        model: A SPLADE encoder, fused or plain; with a `Router`, each of its masked language models is
            shifted.
        document_frequency: `[V]`, in how many of the documents each term is active; >= 0.
        documents: N, the number of documents that were encoded, at least 1.
        strength: Shift of the logit per unit of idf, >= 0; 0 changes nothing.

    Returns:
        `model`.

    Raises:
        ValueError: If a number is out of range, no document has an active term, the frequencies do not have
            the width of the vocabulary, or the decoder has no bias.

    Source: docs/losses.md, section 18.
    """
    frequency = np.asarray(document_frequency, dtype=np.float64)  # [V]
    if not strength >= 0 or not np.isfinite(strength):
        raise ValueError(f"strength must be finite and >= 0; received {strength}")
    if documents < 1 or (frequency < 0).any() or (frequency > documents).any() or not frequency.any():
        raise ValueError(
            f"document_frequency must lie in [0, {documents}] (the number of documents) with a term above 0; "
            f"received values from {frequency.min(initial=0):g} to {frequency.max(initial=0):g}"
        )
    biases = _biases(model)
    for bias in biases:
        if frequency.shape != (len(bias),):
            raise ValueError(
                f"document_frequency must be [{len(bias)}], as the decoder; received {list(frequency.shape)}"
            )

    idf = np.log((documents + 1) / (frequency + 0.5))  # [V]
    mean = (idf * frequency).sum() / frequency.sum()
    shift = torch.from_numpy(np.minimum(idf - mean, 2.0) * strength)  # [V]
    with torch.no_grad():
        for bias in biases:
            bias += shift.to(bias)
    return model


def lower_bias(model: SparseEncoder, threshold: float) -> SparseEncoder:
    """Lower the logits of all terms in place, so that only those above the threshold stay active.

    Args:
        model: A SPLADE encoder, fused or plain; with a `Router`, each of its masked language models changes.
        threshold: What the logit of a term must exceed, finite.

    Returns:
        `model`.

    Raises:
        ValueError: If the threshold is not finite or a decoder has no bias.
    """
    if not np.isfinite(threshold):
        raise ValueError(f"threshold must be finite; received {threshold}")
    with torch.no_grad():
        for bias in _biases(model):
            bias -= threshold
    return model


def _biases(model: SparseEncoder) -> list[torch.Tensor]:
    """The decoder's bias `[V]` of each masked language model."""
    decoders = splade_decoders(model)
    if any(getattr(decoder, "bias", None) is None for decoder in decoders):
        raise ValueError("the decoder of this masked language model has no bias that could be shifted")
    return [decoder.bias for decoder in decoders]
