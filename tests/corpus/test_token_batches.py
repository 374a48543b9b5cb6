"""Batches by tokens hold the vectors of the model's own encoding, with less padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from encoded_batches import batches_of
from sentence_transformers import SparseEncoder

from lexforge.corpus.encoding import encode
from lexforge.corpus.token_batches import encode_by_tokens
from lexforge.models import build_inference_free

# The first half has more characters, the second half more tokens: letters that are no word are one each.
WORDS = ["document function", "dictionaryless", "documents functions", "vector function"]
LETTERS = ["b c d e f g h", "q r s t u", "x y z w v u", "j k l m n"]
TEXTS = [text for pair in zip(WORDS, LETTERS, strict=True) for text in pair]


def own_encoding(model: SparseEncoder, kind: str) -> np.ndarray:
    """What sentence-transformers gives, one text at a time."""
    one = model.encode_query if kind == "query" else model.encode_document
    return np.stack([one(text).to_dense().numpy() for text in TEXTS])


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_batch_is_as_wide_as_its_own_longest_text(side: str, tiny_splade: SparseEncoder) -> None:
    """Worked out from the tokenizer; sorted by characters, the batches would mix short and long ones."""
    tiny_splade.tokenizer.padding_side = side
    expected = own_encoding(tiny_splade, "document") if side == "right" else None
    batches = batches_of(tiny_splade)
    vectors = encode(tiny_splade, TEXTS, "document", batch_size=3)
    tokens = sorted((len(ids) for ids in tiny_splade.tokenizer(TEXTS)["input_ids"]), reverse=True)
    assert [batch.shape for batch in batches] == [(3, tokens[0]), (3, tokens[3]), (2, tokens[6])]
    assert tokens[0] > tokens[3] > tokens[6]
    if expected is not None:  # with padding on the left a text's positions depend on its batch
        np.testing.assert_allclose(vectors.toarray(), expected, rtol=1e-5, atol=1e-5)  # padding changes sums


def test_a_limit_on_active_terms_is_kept(tiny_splade: SparseEncoder) -> None:
    """It is a setting of the model, which `model.encode` applies."""
    tiny_splade.max_active_dims = 3
    vectors = encode(tiny_splade, TEXTS, "document", batch_size=3)
    np.testing.assert_allclose(vectors.toarray(), own_encoding(tiny_splade, "document"), rtol=1e-5, atol=1e-5)
    assert (np.diff(vectors.indptr) == 3).all()


@pytest.mark.parametrize("kind", ["query", "document"])
def test_the_routes_of_an_inference_free_model_are_taken(kind: str, tiny_splade: SparseEncoder) -> None:
    """Its queries are looked up in a table, its documents encoded."""
    size = len(tiny_splade.tokenizer)
    model = build_inference_free(tiny_splade, np.linspace(1, 2, size, dtype=np.float32))
    vectors = encode(model, TEXTS, kind, batch_size=3)
    np.testing.assert_allclose(vectors.toarray(), own_encoding(model, kind), rtol=1e-5, atol=1e-5)


def test_a_model_with_other_features_makes_its_own_batches(tiny_splade: SparseEncoder) -> None:
    """Texts laid flat for flash attention, images or sounds have no row of tokens to cut."""
    expected = own_encoding(tiny_splade, "document")

    class WithMore(SparseEncoder):
        def preprocess(self, *args: Any, **options: Any) -> dict[str, Any]:
            return super().preprocess(*args, **options) | {"sizes": torch.zeros(3, dtype=torch.int32)}

    model = WithMore(modules=list(tiny_splade), device="cpu")
    assert encode_by_tokens(model, TEXTS, "document", 3) is None
    vectors = encode(model, TEXTS, "document", batch_size=3)
    np.testing.assert_allclose(vectors.toarray(), expected, rtol=1e-5, atol=1e-5)
