"""Own activation: a text activates its own rare words (docs/losses.md, section 20)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lexforge.losses.precision import in_float32
from lexforge.losses.tokens import distinct_tokens


@in_float32
def own_activation(
    activations: Tensor,
    input_ids: Tensor,
    attention_mask: Tensor,
    word_weights: Tensor,
    floor: float = 1.0,
) -> Tensor:
    """Hinge on the activation of each of a text's own tokens reaching a floor, weighted by token.

    L = mean over rows of `(sum over j in T of w_j max(0, floor - r_j)) / (sum over j in T of w_j)`, where T
    holds the distinct tokens of the text.

    Args:
        activations: `[B, V]` float, >= 0, the sparse vectors of the texts.
        input_ids: `[B, L]` integer, the tokens of the same texts.
        attention_mask: `[B, L]` integer or bool, 0 at padding.
        word_weights: `[V]` float, >= 0, such as `word_weights` gives.
        floor: What the activation of an own token costs nothing from, in units of activation.

    Returns:
        0-dim float. A text whose tokens all weigh nothing adds 0; an empty batch gives 0, connected to the
        graph.

    Raises:
        ValueError: If the shapes do not agree or a token id lies outside the vocabulary.

    Source: docs/losses.md, section 20.
    """
    if word_weights.shape != activations.shape[1:]:
        raise ValueError(
            f"word_weights must be [{activations.shape[1]}], one per term; received "
            f"{tuple(word_weights.shape)}"
        )
    if not activations.numel():
        return activations.sum()
    ids, counted = distinct_tokens(activations, input_ids, attention_mask)  # [B, L] each
    weights = word_weights[ids] * counted  # [B, L]
    missing = (floor - activations.gather(1, ids)).clamp_min(0)  # [B, L]
    total = weights.sum(dim=1)
    return ((weights * missing).sum(dim=1) / total.where(total > 0, 1)).mean()


def word_weights(
    idf: Tensor | NDArray[np.float32],
    special_token_ids: Sequence[int] = (),
    stopword_ids: Sequence[int] = (),
) -> Tensor:
    """Weigh each term by its idf, and special tokens and stop words by 0.

    Args:
        idf: `[V]` float, >= 0, inverse document frequencies of the corpus, as `lexforge.data.corpus_idf`
            counts them.
        special_token_ids: Ids of special tokens.
        stopword_ids: Ids of stop words.

    Returns:
        `[V]` float32.

    Raises:
        ValueError: If an id lies outside the vocabulary.
    """
    weights = torch.as_tensor(idf).float().clone()
    ids = [*special_token_ids, *stopword_ids]
    if ids and not (min(ids) >= 0 and max(ids) < len(weights)):  # a negative one would count from the end
        raise ValueError(f"ids must lie in [0, {len(weights)}); received ids from {min(ids)} to {max(ids)}")
    weights[torch.tensor(ids, dtype=torch.long)] = 0.0
    return weights
