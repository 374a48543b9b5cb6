"""What Seismic does beyond the protocol: a large vocabulary, its number format, its settings."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from lexforge.retrieval import SeismicIndex, SeismicSettings

pytest.importorskip("seismic", reason="the extra 'seismic' is not installed")


def test_a_vocabulary_above_16_bits() -> None:
    """Seismic's plain classes number terms by 16 bits: column 65,536 would become column 0."""
    columns = np.array([0, 65_536, 249_999])
    documents = sparse.csr_array(
        (np.array([1, 2, 3], np.float32), columns, np.array([0, 1, 2, 3])), shape=(3, 250_002)
    )
    hits = SeismicIndex.build(documents, ["a", "b", "c"]).search(documents, 3)
    assert hits.ids == [["a"], ["b"], ["c"]]
    assert [scores.tolist() for scores in hits.scores] == [[1.0], [4.0], [9.0]]


def test_a_weight_beyond_half_precision_is_refused() -> None:
    """It would be stored as infinity."""
    with pytest.raises(ValueError, match="half precision ends at 65504"):
        SeismicIndex.build(sparse.csr_array(np.array([[70_000.0]], np.float32)), ["a"])


def test_more_query_terms_and_less_skipping_find_more() -> None:
    """The settings must reach Seismic."""
    rng = np.random.default_rng(0)
    documents = sparse.csr_array((rng.random((2000, 60)) * (rng.random((2000, 60)) < 0.3)).astype(np.float32))
    exact = np.sort((documents @ documents[:50].T).toarray(), axis=0)[-10]
    found = []
    for settings in (
        SeismicSettings(query_terms=1, heap_factor=1.0),
        SeismicSettings(query_terms=60, heap_factor=0.3),
    ):
        hits = SeismicIndex.build(documents, [str(row) for row in range(2000)], settings=settings).search(
            documents[:50], 10
        )
        found.append(sum((row >= kth * 0.99).sum() for row, kth in zip(hits.scores, exact, strict=True)))
    assert found[1] > found[0]
    assert found[1] > 450


def test_an_index_without_a_weight_finds_nothing() -> None:
    """Seismic itself cannot be built from nothing."""
    index = SeismicIndex.build(sparse.csr_array(np.zeros((2, 3), np.float32)), ["a", "b"])
    assert index.search(sparse.csr_array(np.ones((1, 3), np.float32)), 2).ids == [[]]
    assert index.nbytes == 0
