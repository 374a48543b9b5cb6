"""The document frequency of active terms, against a naive count."""

from __future__ import annotations

import numpy as np
import pytest
from sentence_transformers import SparseEncoder

from lexforge.corpus import active_document_frequency, encoding

TEXTS = ["sort a list", "the index of a tree", "query", "a vector", "sort the graph", "token", "list list"]


def test_it_counts_the_documents_in_which_a_term_is_above_0(tiny_splade: SparseEncoder) -> None:
    """The oracle counts over the dense vectors of all documents."""
    vectors = tiny_splade.encode_document(TEXTS, convert_to_sparse_tensor=False).cpu().numpy()
    frequency, documents = active_document_frequency(tiny_splade, TEXTS)
    assert documents == len(TEXTS)
    np.testing.assert_array_equal(frequency, (vectors > 0).sum(axis=0))


def test_a_sample_is_spread_over_the_collection(
    tiny_splade: SparseEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Collections are often sorted by source, so the first documents would not stand for the rest."""
    vectors = tiny_splade.encode_document(TEXTS, convert_to_sparse_tensor=False).cpu().numpy()
    monkeypatch.setattr(encoding, "COUNTED_DOCUMENTS", 3)
    frequency, documents = active_document_frequency(tiny_splade, TEXTS)
    assert documents == 3
    np.testing.assert_array_equal(frequency, (vectors[[0, 3, 6]] > 0).sum(axis=0))


def test_nothing_to_count_is_refused(tiny_splade: SparseEncoder) -> None:
    """A mean over no document would be NaN later."""
    with pytest.raises(ValueError, match="at least one document"):
        active_document_frequency(tiny_splade, [])
