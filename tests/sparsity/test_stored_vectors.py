"""Vectors of other settings, made of stored ones, against models that have the settings and encode again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

from lexforge.corpus import encode
from lexforge.models import build_inference_free, lower_bias, restrict_output_vocabulary
from lexforge.sparsity.stored_vectors import StoredVectors, largest_terms

WORDS = "list array search index query document vector sparse token model train file graph tree".split()
TEXTS = [f"the {a} of a {b} {c}" for a, b, c in zip(WORDS, WORDS[3:], WORDS[5:], strict=False)]


def encoder(checkpoint: Path, activation: str = "relu") -> SparseEncoder:
    transformer = Transformer(str(checkpoint), transformer_task="fill-mask", max_seq_length=32)
    pooling = SpladePooling("max", activation_function=activation)
    return SparseEncoder(modules=[transformer, pooling], device="cpu")


def assert_equal(ours: Any, theirs: Any) -> None:
    """Equal up to float32: logits are near 1, and their differences from a level lose bits of that."""
    np.testing.assert_allclose(ours.toarray(), theirs.toarray(), rtol=0, atol=3e-6)


@pytest.mark.parametrize("kind", ["query", "document"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@pytest.mark.parametrize("limit", [None, 7])
def test_every_level_is_that_of_a_model_that_is_lowered_and_encodes(
    tiny_checkpoint: Path, kind: Any, activation: str, limit: int | None
) -> None:
    """A curve would else show what no trimmed model does: from levels that add terms to those that leave
    few; with the limit of a model, and without terms that are forbidden.
    """
    model = encoder(tiny_checkpoint, activation)
    model.max_active_dims = limit
    restrict_output_vocabulary(model, [7, 30])
    stored = StoredVectors(model, TEXTS, kind, -1.5)
    assert_equal(stored.at_level(), encode(model, TEXTS, kind))
    assert stored.at_level().nnz == encode(model, TEXTS, kind).nnz  # [PAD] has a logit of 0 in every text
    counts = []
    for level in (-1.5, -0.4, 0.3, 2.5):
        other = encoder(tiny_checkpoint, activation)
        other.max_active_dims = limit
        restrict_output_vocabulary(other, [7, 30])
        lower_bias(other, level)
        assert_equal(stored.at_level(level), encode(other, TEXTS, kind))
        counts.append(stored.at_level(level).nnz)
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] > 0
    assert limit is not None or counts[-1] < counts[0]


def test_a_loosest_level_above_0_leaves_the_model_as_it_is_in_reach(tiny_splade: SparseEncoder) -> None:
    """A curve of a model with many terms begins with the model itself."""
    stored = StoredVectors(tiny_splade, TEXTS, "document", 2.0)
    assert_equal(stored.at_level(), encode(tiny_splade, TEXTS, "document"))


@pytest.mark.parametrize("most", [1, 5, 1000])
def test_the_largest_terms_are_those_that_the_model_keeps(tiny_splade: SparseEncoder, most: int) -> None:
    """`max_active_dims` of sentence-transformers is what is compared with, so it must be that."""
    ours = largest_terms(encode(tiny_splade, TEXTS, "document"), most)
    tiny_splade.max_active_dims = min(most, len(tiny_splade.tokenizer))
    assert_equal(ours, encode(tiny_splade, TEXTS, "document"))


def test_rows_without_terms_and_equal_weights_have_their_place() -> None:
    """An empty document must not shift the rows behind it; of equal weights the first terms stay."""
    vectors = sparse.csr_array(np.array([[0, 0, 0], [2, 2, 2], [0, 0, 0], [1, 3, 0]], np.float32))
    kept = largest_terms(vectors, 2).toarray()
    assert kept.tolist() == [[0, 0, 0], [2, 2, 0], [0, 0, 0], [1, 3, 0]]


def test_a_threshold_drops_activations_and_leaves_the_others(tiny_splade: SparseEncoder) -> None:
    """The others keep their weights, which is its difference from a level."""
    whole = encode(tiny_splade, TEXTS, "document").toarray()
    middle = np.sort(whole[whole > 0])[200:202]
    threshold = float(middle.mean())  # between two activations, where rounding changes nothing
    assert middle[1] - middle[0] > 1e-5
    ours = StoredVectors(tiny_splade, TEXTS, "document", -1.0).above(threshold)
    np.testing.assert_allclose(ours.toarray(), np.where(whole > threshold, whole, 0), rtol=0, atol=3e-6)


def test_queries_that_are_looked_up_have_no_level(tiny_splade: SparseEncoder) -> None:
    """Their weights are no activations: trimming leaves them, and a threshold would cut frequent words."""
    weights = torch.linspace(0.1, 2, len(tiny_splade.tokenizer))
    model = build_inference_free(tiny_splade, weights.numpy())
    whole = encode(model, TEXTS, "query")
    stored = StoredVectors(model, TEXTS, "query", -1.0)
    for vectors in (stored.at_level(), stored.at_level(1.0), stored.above(1.0)):
        assert_equal(vectors, whole)
    documents = StoredVectors(model, TEXTS, "document", -1.0)
    assert documents.at_level(1.0).nnz < documents.at_level().nnz
