"""Logits and activations of a SPLADE head, each from the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling


def logits_of(model: SparseEncoder, activations: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the logits above 0 from which a model made its activations.

    Args:
        model: A SPLADE encoder.
        activations: `[n]`, above 0.

    Returns:
        `[n]`, in float64, so that a level between two logits stays between them.
    """
    values = np.expm1(activations.astype(np.float64))  # activations are log1p(relu(logit))
    return np.expm1(values) if _takes_log_twice(model) else values


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
