"""Logits and activations of a SPLADE head, each from the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling


def logits_of(
    model: SparseEncoder, activations: NDArray[np.float32], height: float = 0.0
) -> NDArray[np.float64]:
    """Return the logits from which a model made its activations.

    Args:
        model: A SPLADE encoder.
        activations: `[n]`, above 0.
        height: How much higher its bias was than its own, >= 0.

    Returns:
        `[n]`, above -height and with its own bias, in float64, so that a level between two logits stays
        between them. A logit that rounding alone tells from 0 is 0: a padding token without weights has that
        logit in every text, and counts as no term.
    """
    values = np.expm1(activations.astype(np.float64))  # activations are log1p(relu(logit))
    if _takes_log_twice(model):
        values = np.expm1(values)
    values -= height
    if height:
        # The rounding of an activation, times the derivative of the logit by it, at a logit of 0.
        rounding = 4 * float(np.finfo(np.float32).eps) * (1 + height) * (1 + np.log1p(height))
        values[np.abs(values) <= rounding] = 0.0
    return values


def activations_of(model: SparseEncoder, logits: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the activations that a model makes of logits above 0.

    Args:
        model: A SPLADE encoder.
        logits: `[n]`, above 0.

    Returns:
        `[n]`.
    """
    values = np.log1p(logits)
    return (np.log1p(values) if _takes_log_twice(model) else values).astype(np.float32)


def _takes_log_twice(model: SparseEncoder) -> bool:
    pooling = next(module for module in model.modules() if isinstance(module, SpladePooling))
    return pooling.activation_function == "log1p_relu"
