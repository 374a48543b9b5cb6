"""The scale of a decoder that was not trained for SPLADE, set from a sample of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Dense
from torch import Tensor

from lexforge.models.fused import fuse_splade_head, unfuse_splade_head
from lexforge.models.prompts import saved_prompt


def calibrate_head(
    model: SparseEncoder,
    texts: Sequence[str],
    *,
    active_terms: int | None = None,
    logit: float = 1.0,
    sample: int = 64,
) -> SparseEncoder:
    """Set the scale of a decoder in place: a text starts with few active terms of moderate weight.

    The logits of a decoder LM, or of an embedding matrix, are made for something else: half of them are above
    0 in every text, so the first products of two vectors are far too large and training is unstable. Here z_j
    is the largest logit of term j over the tokens of a text, and m_j its mean over a sample of texts. The new
    logit is

        scale * (z_j - m_j - threshold).

    Subtracting m_j takes away what every text has, such as the logits of a first token that all texts share.
    The threshold is chosen so that `active_terms` terms of a text are above 0 on average, and the scale so
    that the mean of those is `logit`. All of it is written into the weight and the bias of the decoder.

    Args:
        model: An encoder of `lexforge.models.headless`, whose decoder is a `Dense`, fused or plain.
        texts: Documents of the collection, at least two different ones that are not blank.
        active_terms: Mean number of active terms per text, from 1 to V - 1; None is 200, or V / 20 where that
            is smaller.
        logit: Mean of the positive logits, above 0.
        sample: The largest number of texts that are encoded, evenly spaced; memory holds their logits
            `[sample, V]`.

    Returns:
        `model`.

    Raises:
        ValueError: If the model has no decoder of its own, a number is out of range, or the texts or their
            logits do not differ.
    """
    decoders = [module for module in model.children() if isinstance(module, Dense)]
    if len(decoders) != 1:
        raise ValueError(
            "only a decoder that was not trained for SPLADE is calibrated, which is a Dense; received an "
            f"encoder with the modules {[type(module).__name__ for module in model.children()]}"
        )
    decoder: Any = decoders[0].linear
    terms = decoder.out_features
    if active_terms is None:
        active_terms = max(1, min(200, terms // 20))
    if not 1 <= active_terms < terms or not logit > 0 or sample < 2:
        raise ValueError(
            f"active_terms must lie in [1, {terms - 1}], logit above 0 and sample at 2 or more; received "
            f"{active_terms}, {logit} and {sample}"
        )
    places = np.linspace(0, len(texts) - 1, min(sample, len(texts))).astype(int)
    chosen = [text for text in dict.fromkeys(texts[place] for place in places) if text.strip()]
    if len(chosen) < 2:
        raise ValueError(f"the scale is set from two different texts or more; received {len(chosen)}")
    largest = _largest_logits(model, chosen)  # [N, V]
    mean = largest.mean(dim=0)  # [V]
    above = (largest - mean).flatten()
    strongest = above.topk(active_terms * len(chosen) + 1).values
    threshold = strongest[-1]
    spread = (strongest[:-1] - threshold).mean()
    if not spread > 0:
        raise ValueError(f"the model gives all {len(chosen)} texts the same logits: nothing tells them apart")
    scale = logit / spread
    with torch.no_grad():
        decoder.weight *= scale.to(decoder.weight)
        decoder.bias.copy_(scale * (decoder.bias.double() - mean - threshold))
    return model


def _largest_logits(model: SparseEncoder, texts: list[str]) -> Tensor:
    """Return the largest logit of each term over the tokens of each text, `[N, V]` float64."""
    fused = any("forward" in vars(module) for module in model.modules())
    training = model.training
    unfuse_splade_head(model).eval()
    rows = []
    with torch.no_grad():
        for text in texts:
            features: Any = model.preprocess([text], prompt=saved_prompt(model, "document"))
            features = {
                key: value.to(model.device) if isinstance(value, Tensor) else value
                for key, value in features.items()
            }
            for module in list(model.children())[:-1]:  # all but the pooling
                features = module(features)
            rows.append(features["token_embeddings"][0].double().amax(dim=0))  # [L, V] -> [V]
    model.train(training)
    if fused:
        fuse_splade_head(model)
    return torch.stack(rows)
