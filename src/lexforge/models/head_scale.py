"""The scale of a head that was not trained for SPLADE, set from a sample of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Dense
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn

from lexforge.common.evaluation_mode import evaluation_mode
from lexforge.common.samples import evenly_spaced
from lexforge.models.decoder_bias import BANNED_BIAS, decoder_biases, set_bias
from lexforge.models.fused import is_fused
from lexforge.models.prompts import encode_kind, saved_prompt
from lexforge.models.structure import module_sequences, splade_decoders, splade_transformers

UNTRAINED = 0.1
"""Share of the vocabulary. A text activates more of it only under a head that was not trained for SPLADE: a
masked language model of another task activates a quarter or more, a trained SPLADE encoder 5 % at most."""
EXPANSION = 2
"""Active terms per distinct token of a text. Only a trained head activates fewer, however small its
vocabulary is: that of a backbone that was built from a few documents has about a thousand terms."""


def scale_head(
    model: SparseEncoder,
    texts: Sequence[str],
    *,
    active_terms: int | None = None,
    sample: int = 64,
) -> SparseEncoder:
    """Set the scale of a head in place: a text starts with few active terms of moderate weight.

    The logits of a masked language model, of a decoder LM or of an embedding matrix are made for something
    else: a large part of them is above 0 in every text, so the first products of two vectors are far too
    large and training is unstable. Here z_j is the largest logit of term j over the tokens of a text, and m_j
    its mean over a sample of texts. The new logit is

        scale * (z_j - m_j - threshold).

    Subtracting m_j takes away what every text has, such as the logits of a first token that all texts share.
    The threshold is chosen so that `active_terms` terms of a text are above 0 on average, and the scale so
    that the mean of those is 1. All of it is written into weights: the shift into the decoder's bias,
    and the scale into the decoder's weight, or, where that is also the matrix of the input embeddings, into
    the normalization before it. A decoder that has neither keeps its scale.

    Args:
        model: A symmetric SPLADE encoder, fused or plain.
        texts: Documents of the collection, at least two different ones that are not blank.
        active_terms: Mean number of active terms per text, at least 1 and below the number of terms that may
            be active: V, or those of a restricted output vocabulary. None is 200, or a twentieth of them
            where that is smaller.
        sample: The largest number of texts that are encoded, evenly spaced; memory holds their logits
            `[sample, V]`.

    Returns:
        `model`.

    Raises:
        ValueError: If the model has several heads or a decoder without a bias, a number is out of range, or
            the texts or their logits do not differ.
    """
    decoder = _only_decoder(model)
    (bias,) = decoder_biases(model)
    banned = bias.detach() <= BANNED_BIAS / 2  # terms that the output vocabulary leaves out stay out
    terms = decoder.out_features - int(banned.sum())
    if active_terms is None:
        active_terms = max(1, min(200, terms // 20))
    if not 1 <= active_terms < terms or sample < 2:
        raise ValueError(
            f"active_terms must lie in [1, {terms - 1}] and sample at 2 or more; received {active_terms} and "
            f"{sample}"
        )
    chosen = _some(texts, sample)
    if len(chosen) < 2:
        raise ValueError(f"the scale is set from two different texts or more; received {len(chosen)}")
    largest = _largest_logits(model, chosen)  # [N, V]
    mean = largest.mean(dim=0)  # [V]
    above = (largest - mean).masked_fill(banned, -torch.inf).flatten()
    strongest = above.topk(active_terms * len(chosen) + 1).values
    threshold = strongest[-2:].mean()  # between two logits, where rounding changes no term
    spread = (strongest[:-1] - threshold).mean()
    if not spread > 0:
        raise ValueError(f"the model gives all {len(chosen)} texts the same logits: nothing tells them apart")
    scaled = _scaled_parameters(model, chosen[0])
    scale = 1.0 / spread if scaled else torch.ones_like(spread)
    with torch.no_grad():
        for parameter in scaled:
            parameter *= scale.to(parameter)
    shifted = scale * (bias.detach().double() - mean - threshold)
    return set_bias(model, torch.where(banned, bias.detach().double(), shifted))


def has_language_model_head(model: SparseEncoder) -> bool:
    """Say whether the decoder belongs to a language model; else it is a `Dense` behind a transformer.

    Args:
        model: A SPLADE encoder, symmetric or not, fused or plain.

    Returns:
        False if a decoder was made of embeddings, as that of a dense encoder, a bare one or a decoder LM.
    """
    return not any(isinstance(module, Dense) for module in model.modules())


def head_is_trained(model: SparseEncoder, texts: Sequence[str], *, sample: int = 64) -> bool:
    """Say whether the head of a SPLADE encoder was trained for sparse vectors, by the terms of a few texts.

    Args:
        model: A SPLADE encoder, symmetric or not, fused or plain.
        texts: Documents of the collection.
        sample: The largest number of texts that are encoded, evenly spaced.

    Returns:
        Whether a text activates at most `UNTRAINED` of the vocabulary on average, or at most `EXPANSION`
        terms per distinct token that it has. Without any text that is not blank, the head counts as trained.
        One that was made of embeddings, and whose bias is still 0, is not, whatever it activates.
    """
    made = [module.linear.bias for module in model.modules() if isinstance(module, Dense)]
    if made and all(bias is not None and not bias.any() for bias in made):
        return False  # the decoder is made of embeddings, and was neither scaled nor trained since
    chosen = _some(texts, sample)
    if not chosen:
        return True
    with evaluation_mode(model):
        vectors = encode_kind(model, chosen, "document", show_progress_bar=False)  # sparse [N, V]
    active = int(vectors._nnz())
    return active <= UNTRAINED * vectors.numel() or active <= EXPANSION * _own_tokens(model, chosen)


def can_scale_logits(model: SparseEncoder, text: str) -> bool:
    """Say whether the logits of a model can be multiplied by a factor.

    Args:
        model: A SPLADE encoder with one head, fused or plain.
        text: Any text.

    Returns:
        False where the decoder is the matrix of the input embeddings and no normalization stands before it.
    """
    return bool(_scaled_parameters(model, text))


@torch.no_grad()
def scale_logits(model: SparseEncoder, factor: int, text: str) -> SparseEncoder:
    """Multiply all logits by a power of two, in place, so that no rounding changes which terms are active.

    The factor goes where `scale_head` writes its scale, and into the bias, in which banned terms stay banned.

    Args:
        model: A SPLADE encoder that `can_scale_logits` accepts, fused or plain.
        factor: A power of two, 1 or above.
        text: Any text; it shows what the decoder reads.

    Returns:
        `model`.

    Raises:
        ValueError: If the factor is no power of two, or the model has no place for it.
    """
    if factor < 1 or factor & (factor - 1):
        raise ValueError(f"factor must be a power of two, 1 or above; received {factor}")
    (bias,) = decoder_biases(model)
    parameters = _scaled_parameters(model, text)
    if not parameters:
        raise ValueError("the decoder is the matrix of the input embeddings, with no normalization before it")
    for parameter in parameters:
        parameter *= factor
    return set_bias(model, torch.where(bias <= BANNED_BIAS / 2, bias, bias * factor))


def _only_decoder(model: SparseEncoder) -> Any:
    decoders = splade_decoders(model)
    if len(decoders) != 1:
        raise ValueError(f"one head can be scaled; received an encoder with {len(decoders)}")
    return decoders[0]


def _some(texts: Sequence[str], sample: int) -> list[str]:
    """At most so many evenly spaced texts that differ and are not blank."""
    chosen = dict.fromkeys(texts[place] for place in evenly_spaced(len(texts), sample))
    return [text for text in chosen if text.strip()]


def _own_tokens(model: SparseEncoder, texts: list[str]) -> int:
    """Count the distinct tokens of each text, and add them up."""
    transformer: Any = splade_transformers(model)[0]
    prompt = saved_prompt(model, "document")
    features = (transformer.preprocess([text], prompt=prompt) for text in texts)
    return sum(len(each["input_ids"].unique()) for each in features)


def _scaled_parameters(model: SparseEncoder, text: str) -> list[Tensor]:
    """Find the parameters to which all logits, without the bias, are proportional, and nothing else is."""
    decoder = _only_decoder(model)
    transformer: Any = splade_transformers(model)[0]
    if decoder.weight is not transformer.model.get_input_embeddings().weight:
        return [decoder.weight]
    given: list[Tensor] = []  # what the decoder reads
    made: list[tuple[nn.Module, Any]] = []  # what each normalization returns
    hooks: list[Any] = [decoder.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))]
    for module in transformer.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.dim() == 1:
            hooks.append(module.register_forward_hook(lambda module, _, out: made.append((module, out))))
    try:
        _largest_logits(model, [text])
    finally:
        for hook in hooks:
            hook.remove()
    return [
        parameter
        for module, output in made
        if output is given[-1]
        for parameter in module.parameters(recurse=False)
    ]


def _largest_logits(model: SparseEncoder, texts: list[str]) -> Tensor:
    """Return the largest logit of each term over the tokens of each text, `[N, V]` float64."""
    (transformer,) = splade_transformers(model)
    decoder, fused = _only_decoder(model), is_fused(model)
    head = next(modules for modules in module_sequences(model) if transformer in modules)
    rows = []
    with evaluation_mode(model), torch.no_grad():
        for text in texts:
            features: Any = transformer.preprocess([text], prompt=saved_prompt(model, "document"))
            features = batch_to_device(features, model.device)
            for module in head[head.index(transformer) : -1]:  # all but the pooling
                features = module(features)
            found = features["token_embeddings"][0]  # a fused head leaves the states [L, D]
            logits = F.linear(found, decoder.weight, decoder.bias) if fused else found  # [L, V]
            rows.append(logits.amax(dim=0).double())
    return torch.stack(rows)
