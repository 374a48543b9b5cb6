"""Sparsity by FLOPS, plain and IDF-aware (docs/losses.md, section 5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lexforge.losses.precision import in_float32
from lexforge.settings import LossSettings


@in_float32
def flops(activations: Tensor) -> Tensor:
    """Sum over the vocabulary of the squared mean activation: the expected cost of a dot product.

    Args:
        activations: `[B, V]` float, >= 0.

    Returns:
        0-dim float; 0 for an empty batch, connected to the graph.

    Source: Paria et al. 2020 (arXiv 2004.05665), section 4; SPLADE (arXiv 2109.10086), equation 4.
    """
    if not len(activations):
        return activations.sum()
    return mean_of_rows(activations).square().sum()


@in_float32
def idf_flops(activations: Tensor, penalty_weights: Tensor, l2_ratio: float = 0.3) -> Tensor:
    """Weighted L1 plus weighted L2 of the mean activation of each term.

    L = sum over j of `w_j |a_j| + l2_ratio * w_j a_j^2`, with a_j the mean activation of term j over the
    batch.

    Args:
        activations: `[B, V]` float, >= 0.
        penalty_weights: `[V]` float, >= 0, from `idf_penalty_weights`.
        l2_ratio: beta, the weight of the squared part.

    Returns:
        0-dim float; 0 for an empty batch, connected to the graph.

    Raises:
        ValueError: If the number of weights differs from the vocabulary.

    Source: docs/losses.md, section 5.
    """
    if penalty_weights.shape != activations.shape[1:]:
        raise ValueError(
            f"penalty_weights must be [{activations.shape[1]}], one per term; received "
            f"{tuple(penalty_weights.shape)}"
        )
    if not len(activations):
        return activations.sum()
    mean = mean_of_rows(activations)
    return (penalty_weights * (mean.abs() + l2_ratio * mean.square())).sum()


def mean_of_rows(activations: Tensor) -> Tensor:
    """Return the mean row `[V]` of `[B, V]`, whose gradient for the rows is one row and no `[B, V]`."""
    return activations.sum(dim=0) / len(activations)


@in_float32
def idf_penalty_weights(
    idf: Tensor,
    alpha: float = 4.0,
    special_token_ids: Sequence[int] = (),
    special_penalty: float = 100.0,
    stopword_ids: Sequence[int] = (),
    stopword_penalty: float = 15.0,
) -> Tensor:
    """Turn the inverse document frequency of each term into its penalty: high for frequent terms.

    w_j = exp(-alpha * (idf_j - min) / (max - min)), with min and max over the terms that are not special
    tokens. Special tokens, which never occur in a corpus and would be nearly free by their idf, get a fixed
    penalty instead; the weight of a stop word is multiplied.

    Args:
        idf: `[V]` float, finite.
        alpha: Steepness, >= 0; the weights lie in [exp(-alpha), 1] before the penalties.
        special_token_ids: Ids outside the range, set to `special_penalty`.
        special_penalty: Weight of a special token, >= 0.
        stopword_ids: Ids whose weight is multiplied by `stopword_penalty`.
        stopword_penalty: Factor, >= 0.

    Returns:
        `[V]` float. Where all terms have the same idf, all weights are 1 before the penalties.

    Raises:
        ValueError: If idf is not a finite vector, an id lies outside it, every term is special, or a number
            is negative.

    Source: docs/losses.md, section 5 (V26).
    """
    if idf.dim() != 1 or not torch.isfinite(idf).all():
        raise ValueError(
            f"idf must be a finite [V] vector; received shape {tuple(idf.shape)} with "
            f"{int((~torch.isfinite(idf)).sum())} non-finite values"
        )
    for name, value in (
        ("alpha", alpha),
        ("special_penalty", special_penalty),
        ("stopword_penalty", stopword_penalty),
    ):
        if not value >= 0:
            raise ValueError(f"{name} must be >= 0; received {value}")
    for name, ids in (("special_token_ids", special_token_ids), ("stopword_ids", stopword_ids)):
        if len(ids) and not (min(ids) >= 0 and max(ids) < len(idf)):
            raise ValueError(
                f"{name} must lie in [0, {len(idf)}); received ids from {min(ids)} to {max(ids)}"
            )
    special = torch.as_tensor(special_token_ids, dtype=torch.long, device=idf.device)
    stopwords = torch.as_tensor(stopword_ids, dtype=torch.long, device=idf.device)
    is_special = torch.zeros_like(idf, dtype=torch.bool).index_fill_(0, special, True)
    ordinary = idf[~is_special]
    if not len(ordinary):
        raise ValueError(f"idf holds no term beside the {len(idf)} special tokens")
    spread = ordinary.max() - ordinary.min()
    normalised = (idf - ordinary.min()) / spread if spread > 0 else torch.zeros_like(idf)
    weights = torch.exp(-alpha * normalised)
    weights[stopwords.unique()] *= stopword_penalty
    weights[special] = special_penalty
    return weights


def penalty_weights(
    settings: LossSettings,
    idf: Tensor | NDArray[np.float32],
    special_token_ids: Sequence[int],
    stopword_ids: Sequence[int],
) -> Tensor | None:
    """Apply the idf settings of a preset to a corpus: what `NeuralSparseLoss` takes as `penalty_weights`.

    Args:
        settings: The loss of the preset.
        idf: `[V]` float, inverse document frequencies of the corpus, as `lexforge.data.corpus_idf` counts
            them.
        special_token_ids: Ids of special tokens.
        stopword_ids: Ids of stop words.

    Returns:
        `[V]` float, or None for the plain FLOPS.

    Raises:
        ValueError: As `idf_penalty_weights`.
    """
    if settings.idf_alpha is None:
        return None
    return idf_penalty_weights(
        torch.as_tensor(idf),
        alpha=settings.idf_alpha,
        special_token_ids=() if settings.special_penalty is None else special_token_ids,
        special_penalty=settings.special_penalty or 0.0,
        stopword_ids=stopword_ids,
        stopword_penalty=settings.stopword_penalty,
    )
