"""Rows in blocks on the disk, found by key."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lexforge.storage.blocks import BlockCache


def test_a_cache_that_grows_finds_each_key_where_a_new_one_does(tmp_path: Path) -> None:
    """Keys are inserted as blocks are appended; the oracle is a dictionary of the first row of each key."""
    blocks = BlockCache(tmp_path, "test-block", np.float32)
    generator = np.random.default_rng(0)
    first: dict[int, np.ndarray] = {}
    wanted = np.arange(45, dtype=np.uint64)
    for _ in range(6):
        keys = generator.integers(0, 40, size=15).astype(np.uint64)  # repeats, in a block and between them
        rows = generator.normal(size=(15, 2)).astype(np.float32)
        blocks.append("teacher", keys, rows)
        for key, row in zip(keys.tolist(), rows, strict=True):
            first.setdefault(key, row)
        np.testing.assert_array_equal(blocks.known(wanted), [key in first for key in wanted.tolist()])
    known = np.array(sorted(first), dtype=np.uint64)
    np.testing.assert_array_equal(blocks.rows(known), np.stack([first[key] for key in known.tolist()]))
