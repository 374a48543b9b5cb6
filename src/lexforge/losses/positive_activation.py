"""Positive activation: an anchor activates the tokens of its positive (docs/losses.md, section 3)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lexforge.losses.precision import in_float32
from lexforge.losses.tokens import distinct_tokens


@in_float32
def positive_activation(
    anchor: Tensor,
    positive_input_ids: Tensor,
    positive_attention_mask: Tensor,
    special_token_ids: Sequence[int] | Tensor = (),
) -> Tensor:
    """Minus the mean activation of the anchor over the distinct, non-special tokens of its positive.

    L = -mean over rows of `(1 / |T_p|) sum over j in T_p of r_j`. The term is unbounded below: without a
    sparsity term beside it, every positive token grows without end.

    Args:
        anchor: `[B, V]` float, >= 0, the sparse vectors of the anchors.
        positive_input_ids: `[B, L]` integer, the tokens of the positives.
        positive_attention_mask: `[B, L]` integer or bool, 0 at padding.
        special_token_ids: Ids left out of T_p; as a tensor they must lie on the device of the tokens.

    Returns:
        0-dim float. A positive without tokens adds 0; an empty batch gives 0, connected to the graph.

    Raises:
        ValueError: If the shapes do not agree or an id lies outside the vocabulary.

    Source: docs/losses.md, section 3.
    """
    if not anchor.numel():
        return anchor.sum()
    ids, counted = distinct_tokens(
        anchor, positive_input_ids, positive_attention_mask, special_token_ids
    )  # [B, L] each
    activation = anchor.gather(1, ids).where(counted, 0).sum(dim=1) / counted.sum(dim=1).clamp_min(1)
    return -activation.mean()
