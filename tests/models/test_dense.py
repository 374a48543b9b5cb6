"""Dense encoders from a saved model or a bare checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from lexforge.models import build_dense, build_lexical_backbone

TEXTS = ["ships sail on waves", "farmers plough the field"]


@pytest.fixture
def backbone(tmp_path: Path) -> Path:
    return build_lexical_backbone(TEXTS * 5, tmp_path / "backbone", vocab_size=60, hidden_size=64)


def test_a_bare_checkpoint_gets_the_mean_over_its_tokens(backbone: Path) -> None:
    """The oracle is the transformer itself, called by hand: padding must not enter the mean."""
    model = build_dense(backbone, max_seq_length=16)
    tokens = AutoTokenizer.from_pretrained(backbone)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(backbone).eval()(**tokens).last_hidden_state
    for row, text in enumerate(TEXTS):
        kept = states[row][tokens["attention_mask"][row].bool()]
        # float32 sums of a few tokens in another order
        np.testing.assert_allclose(model.encode(text), kept.mean(0).numpy(), atol=1e-5)
    assert model.max_seq_length == 16
    assert model.similarity_fn_name == "cosine"


def test_a_saved_model_keeps_its_modules(backbone: Path, tmp_path: Path) -> None:
    """What was saved is what comes back, with plain sentence-transformers too."""
    model = build_dense(backbone, similarity="dot")
    model.save_pretrained(str(tmp_path / "saved"))
    again = build_dense(tmp_path / "saved", similarity="dot")
    stock = SentenceTransformer(str(tmp_path / "saved"))
    np.testing.assert_array_equal(again.encode(TEXTS), model.encode(TEXTS))
    np.testing.assert_array_equal(stock.encode(TEXTS), model.encode(TEXTS))
    assert stock.similarity_fn_name == "dot"


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    """Each is named with what is allowed, before anything is loaded."""
    with pytest.raises(FileNotFoundError, match="there is no model at"):
        build_dense(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r'similarity must be "cosine" or "dot"; received .l2'):
        build_dense(tmp_path, similarity="l2")  # type: ignore[arg-type]


def test_a_saved_model_keeps_its_similarity_unless_told(backbone: Path, tmp_path: Path) -> None:
    """A model that was trained by dot product must not be searched by cosine without a word."""
    build_dense(backbone, similarity="dot").save_pretrained(str(tmp_path / "saved"))
    assert build_dense(tmp_path / "saved").similarity_fn_name == "dot"
    assert build_dense(tmp_path / "saved", similarity="cosine").similarity_fn_name == "cosine"
