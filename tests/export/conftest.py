"""Encoded corpora of given vectors, so that exports are tested without a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from lexforge.common.manifest import pack_manifest
from lexforge.corpus import EncodedCorpus, encoded_corpus


def store_vectors(
    folder: Path, vectors, ids: list[str], similarity: str = "dot", block_rows: int = 4
) -> EncodedCorpus:
    """Write vectors as `encode_corpus` would."""
    kind = "sparse" if sparse.issparse(vectors) else "dense"
    manifest = encoded_corpus.Manifest(
        "model", "f" * 40, kind, similarity, 128, "c" * 40, len(ids), block_rows, 32
    )
    folder.mkdir()
    (folder / "manifest.json").write_text(pack_manifest(encoded_corpus.FORMAT, asdict(manifest)))
    for number in range(manifest.blocks):
        rows = slice(number * block_rows, (number + 1) * block_rows)
        content = encoded_corpus._block_bytes(vectors[rows], ids[rows], manifest, number)
        (folder / f"block-{number:06d}.safetensors").write_bytes(content)
    return EncodedCorpus(folder)


@pytest.fixture
def store() -> Callable[..., EncodedCorpus]:
    return store_vectors


@pytest.fixture
def some_vectors() -> Callable[..., sparse.csr_array]:
    """Random sparse rows of float32 weights with all their digits; row 3 is empty."""

    def make(rows: int, width: int = 40, seed: int = 0) -> sparse.csr_array:
        rng = np.random.default_rng(seed)
        dense = rng.uniform(0.01, 3, (rows, width)).astype(np.float32) * (rng.random((rows, width)) < 0.3)
        dense[3:4] = 0
        return sparse.csr_array(dense)

    return make
