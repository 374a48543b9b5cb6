"""Self-reconstruction: a text activates its own tokens (docs/losses.md, section 2)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lexforge.losses.precision import in_float32
from lexforge.losses.tokens import distinct_tokens


@in_float32
def self_reconstruction(activations: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Binary cross-entropy between activations, read as logits, and the set of the text's own tokens.

    L = mean over rows and vocabulary of `softplus(r_j) - t_j r_j`, with t_j = 1 where token j occurs in the
    text. Because activations are never negative, each inactive dimension costs log 2: the term has no zero,
    and the mean over a large vocabulary makes its gradient small. Special tokens count as tokens of the
    text.

    Args:
        activations: `[B, V]` float, >= 0, the sparse vectors of the texts.
        input_ids: `[B, L]` integer, the tokens of the same texts.
        attention_mask: `[B, L]` integer or bool, 0 at padding.

    Returns:
        0-dim float; 0 for an empty batch, connected to the graph.

    Raises:
        ValueError: If the shapes do not agree or a token id lies outside the vocabulary.

    Source: docs/losses.md, section 2.
    """
    if not activations.numel():
        return activations.sum()
    ids, counted = distinct_tokens(activations, input_ids, attention_mask)  # [B, L] each
    own = activations.gather(1, ids).where(counted, 0)  # [B, L]
    # Two sums keep no further tensor of the size of the activations for the gradient.
    # softplus(x) is x to the last digit of float64 beyond the threshold.
    costs = F.softplus(activations, threshold=40.0).sum() - own.sum()
    return costs / activations.numel()
