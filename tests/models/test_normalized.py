"""A model that was trained by cosine, for engines that know dot products only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer, SparseEncoder

from lexforge.models import build_inference_free, build_splade, load_encoder, normalize_vectors
from lexforge.models.fingerprint import fingerprint

TEXTS = ["sort a list list", "한국 서울 검색", "tree of nodes", "read the file file file"]


def vectors(model: SparseEncoder | SentenceTransformer, kind: str) -> np.ndarray:
    rows = getattr(model, f"encode_{kind}")(TEXTS, convert_to_tensor=True, show_progress_bar=False)
    return rows.to_dense().double().cpu().numpy()


def cosines(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Every pair by itself."""
    return np.array([[q @ d / np.linalg.norm(q) / np.linalg.norm(d) for d in documents] for q in queries])


@pytest.mark.parametrize("encoder", ["sparse", "inference-free", "dense"])
@pytest.mark.parametrize("load", ["plain", "lexforge"])
def test_dot_products_of_the_saved_model_are_the_cosines_of_the_trained_one(
    encoder: str, load: str, tiny_checkpoint: Path, tiny_dense: SentenceTransformer, tmp_path: Path
) -> None:
    """Four steps of V26 had .804 by cosine and .758 by dot product: an engine must not choose for the model.
    The step is stock, so plain sentence-transformers loads it, and saving twice changes nothing.
    """
    model: SparseEncoder | SentenceTransformer = tiny_dense
    if encoder != "dense":
        model = build_splade(tiny_checkpoint, similarity="cosine", device="cpu")
    if encoder == "inference-free":
        model = build_inference_free(model, np.linspace(1, 3, len(model.tokenizer)))
    expected = cosines(vectors(model, "query"), vectors(model, "document"))
    dots = vectors(model, "query") @ vectors(model, "document").T
    assert np.abs(dots - expected).max() > 0.05, "the two differ before"
    assert normalize_vectors(normalize_vectors(model)) is model
    model.save_pretrained(str(tmp_path / "model"))
    if load == "lexforge":
        loaded = load_encoder(str(tmp_path / "model"), device="cpu")
    else:
        loaded = (SentenceTransformer if encoder == "dense" else SparseEncoder)(
            str(tmp_path / "model"), device="cpu"
        )
    assert loaded.similarity_fn_name == "dot"
    found = vectors(loaded, "query") @ vectors(loaded, "document").T
    np.testing.assert_allclose(found, expected, atol=2e-6)  # float32 vectors, fused and plain


def test_a_model_that_is_searched_by_dot_product_stays(tiny_splade: SparseEncoder) -> None:
    """Its lengths carry part of the score."""
    before = fingerprint(tiny_splade)
    assert fingerprint(normalize_vectors(tiny_splade)) == before


def test_vectors_that_are_cut_afterwards_are_refused(tiny_splade: SparseEncoder) -> None:
    """The strongest terms of a unit vector have another length in each text."""
    tiny_splade.similarity_fn_name = "cosine"
    tiny_splade.max_active_dims = 4
    with pytest.raises(ValueError, match="set max_active_dims of the model to None, received 4"):
        normalize_vectors(tiny_splade)
