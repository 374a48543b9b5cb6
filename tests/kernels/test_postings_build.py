"""Bounds by block, against a loop over the matrix."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from lexforge.kernels.postings import segments_of


@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_no_weight_is_above_its_bound(block_size: int) -> None:
    """A bound too low loses a hit; one that is a whole level too high only costs time, but says of a bug."""
    rng = np.random.default_rng(0)
    dense = rng.gamma(0.5, 1, (130, 40)) * (rng.random((130, 40)) < np.linspace(0.01, 0.9, 40))
    (postings,) = segments_of(sparse.csr_array(dense.astype(np.float32)), block_size)
    stored = dense.astype(np.float32)[postings.positions]
    blocks = -(-130 // block_size)
    rows, lists = 0, 0
    for term in range(40):
        bounds = np.zeros(blocks)
        start = postings.dense_starts[0, term]
        if start >= 0:
            rows += 1
            bounds[:] = postings.dense[start : start + blocks]
        else:
            lists += 1
            span = slice(postings.list_starts[0, term], postings.list_starts[0, term + 1])
            assert (np.diff(postings.list_blocks[span].astype(int)) > 0).all()
            bounds[postings.list_blocks[span]] = postings.list_levels[span]
        scale = float(postings.scales[0, term])
        for block in range(blocks):
            largest = float(stored[block * block_size : (block + 1) * block_size, term].max())
            assert bounds[block] * scale >= largest
            assert bounds[block] * scale <= largest + scale
    assert rows > 0
    assert lists > 0  # both kinds were looked at
