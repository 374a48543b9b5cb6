"""Rows and ids that the tests of each server store."""

from __future__ import annotations

import numpy as np
from scipy import sparse

WIDTH = 12


def sparse_rows(count: int, seed: int = 0) -> sparse.csr_array:
    """Small whole weights: many equal scores, and every sum exact in float32."""
    rng = np.random.default_rng(seed)
    shape = (max(3, count), WIDTH)
    matrix = rng.integers(0, 4, shape) * (rng.random(shape) < 0.4)
    matrix[2] = 0  # nothing to find it by, or nothing to ask for
    return sparse.csr_array(matrix[:count].astype(np.float32))


def names(count: int, start: int = 0) -> list[str]:
    return [f"d{number}" for number in range(start, start + count)]
