"""The bias of a SPLADE decoder, which decides the terms that count: the only code that writes it.

Term j is active in a text if its largest logit over the tokens, bias included, is above 0. So the bias holds
a threshold for each term: the ban of a term, its idf, the shift of a new head, and the level that gives
documents a wanted number of terms. It is saved, loaded and exported with the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import ArrayLike
from sentence_transformers import SparseEncoder
from torch import Tensor

from lexforge.models.structure import layers_with_adapters, splade_decoders, splade_transformers

BANNED_BIAS = -1e4
"""Far below any logit, and finite in float16."""


def decoder_biases(model: SparseEncoder) -> list[Tensor]:
    """Return the bias of each decoder, to be read; the functions below write it.

    Args:
        model: A SPLADE encoder, fused or plain.

    Returns:
        A parameter `[V]` of each masked language model: of one, or with a `Router` of several.

    Raises:
        ValueError: If a decoder has no bias, or if it belongs to a transformer with an adapter, which is
            saved without it.
    """
    decoders = splade_decoders(model)
    for transformer in splade_transformers(model):
        if layers_with_adapters(transformer) and not set(decoders).isdisjoint(transformer.modules()):
            raise ValueError(
                "the model has an adapter of peft, which is saved without the bias of the decoder, so that a "
                "change of this bias would be lost. Load the base of the adapter anew, call "
                "peft.PeftModel.from_pretrained(base.transformers_model, ADAPTER).merge_and_unload(), and "
                "change the base"
            )
    if any(getattr(decoder, "bias", None) is None for decoder in decoders):
        raise ValueError(
            "the decoder of this masked language model has no bias that could be shifted (for ModernBERT, "
            "load it with decoder_bias=True)"
        )
    return [decoder.bias for decoder in decoders]


@torch.no_grad()
def set_bias(model: SparseEncoder, values: Tensor) -> SparseEncoder:
    """Give each term a bias, in place.

    Args:
        model: A SPLADE encoder, fused or plain; with a `Router`, each of its masked language models changes.
        values: `[V]` float.

    Returns:
        `model`.

    Raises:
        ValueError: If a decoder has no bias.
    """
    for bias in decoder_biases(model):
        bias.copy_(values)
    return model


@torch.no_grad()
def lower_bias(model: SparseEncoder, level: float) -> SparseEncoder:
    """Lower the logits of all terms in place, so that only those above a level stay active.

    Terms that `restrict_output_vocabulary` has banned keep `BANNED_BIAS`.

    Args:
        model: A SPLADE encoder, fused or plain; with a `Router`, each of its masked language models changes.
        level: What the logit of a term must exceed, finite.

    Returns:
        `model`.

    Raises:
        ValueError: If the level is not finite or a decoder has no bias.
    """
    if not np.isfinite(level):
        raise ValueError(f"the level of logits must be finite; received {level}")
    for bias in decoder_biases(model):
        bias.copy_(torch.where(bias > BANNED_BIAS / 2, bias - level, bias))
    return model


@contextmanager
def raised_bias(model: SparseEncoder, height: float) -> Iterator[None]:
    """A block in which all logits are higher, so that those below the threshold are seen.

    Args:
        model: A SPLADE encoder, fused or plain, which has its own bias again after the block.
        height: What is added to each logit.

    Raises:
        ValueError: If a decoder has no bias.
    """
    biases = decoder_biases(model)
    before = [bias.detach().clone() for bias in biases]
    with torch.no_grad():
        for bias in biases:
            bias += height
    try:
        yield
    finally:
        with torch.no_grad():
            for bias, own in zip(biases, before, strict=True):
                bias.copy_(own)


@torch.no_grad()
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
    biases = decoder_biases(model)
    for bias in biases:
        if frequency.shape != (len(bias),):
            raise ValueError(
                f"document_frequency must be [{len(bias)}], as the decoder; received {list(frequency.shape)}"
            )

    idf = np.log((documents + 1) / (frequency + 0.5))  # [V]
    mean = (idf * frequency).sum() / frequency.sum()
    shift = torch.from_numpy(np.minimum(idf - mean, 2.0) * strength)  # [V]
    for bias in biases:
        bias += shift.to(bias)
    return model


@torch.no_grad()
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
    biases = decoder_biases(model)
    for bias in biases:
        size = len(bias)
        if ids and not 0 <= ids[0] <= ids[-1] < size:
            wrong = [term for term in ids if not 0 <= term < size]
            raise ValueError(f"term ids must lie in [0, {size}); received {wrong[:5]}")
        if len(ids) == size:
            raise ValueError(f"received all {size} terms to ban; nothing would be left to search with")
    for bias in biases:
        bias[torch.tensor(ids, dtype=torch.long, device=bias.device)] = BANNED_BIAS
    return model
