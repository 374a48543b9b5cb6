"""The idf of the active terms and the threshold in the decoder's bias: by hand, saved, and bad input."""

from __future__ import annotations

from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SparseEncoder

from lexforge.models import (
    build_splade,
    lower_bias,
    restrict_output_vocabulary,
    shift_bias_by_idf,
    vocabulary_size,
)

TEXTS = ["sort a list of words", "the index", "query a vector"]


@pytest.fixture
def model(tiny_checkpoint: Path) -> SparseEncoder:
    return build_splade(tiny_checkpoint, device="cpu")


def bias(model: SparseEncoder) -> torch.Tensor:
    return model[0].model.get_output_embeddings().bias.detach().clone()


def test_the_shift_is_the_idf_above_its_mean(model: SparseEncoder) -> None:
    """Ten documents; term 0 is active in all, term 1 in one, the others in none: worked out by hand."""
    before = bias(model)
    frequency = np.zeros(len(before))
    frequency[:2] = 10, 1
    assert shift_bias_by_idf(model, frequency, 10, 0.5) is model
    shift = bias(model) - before
    common, rare, absent = log(11 / 10.5), log(11 / 1.5), log(11 / 0.5)
    mean = (10 * common + rare) / 11
    assert shift[0].item() == pytest.approx(0.5 * (common - mean), abs=1e-6)
    assert shift[1].item() == pytest.approx(0.5 * (rare - mean), abs=1e-6)
    assert absent - mean > 2  # so the limit is at work
    assert shift[2:].tolist() == pytest.approx([1.0] * (len(before) - 2), abs=1e-6)


def test_it_changes_no_other_weight_and_strength_0_changes_none(model: SparseEncoder) -> None:
    """An encoder is tied: a shift that touched the embedding would change what the texts mean."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    frequency = np.ones(vocabulary_size(model))
    shift_bias_by_idf(model, frequency, 3, 0.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    frequency[0] = 3
    shift_bias_by_idf(model, frequency, 3, 1.0)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed
    assert all(name.endswith("bias") and "predictions" in name for name in changed), changed


def test_plain_sentence_transformers_loads_the_shift_and_banned_terms_stay_banned(
    model: SparseEncoder, tmp_path: Path
) -> None:
    """The shift is part of the saved weights, and it must not lift the ban of a special token."""
    restrict_output_vocabulary(model, [0, 1, 2])
    frequency = np.zeros(vocabulary_size(model))
    frequency[5] = 2
    shift_bias_by_idf(model, frequency, 2, 1.0)
    expected = model.encode(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False).cpu().numpy()
    assert not expected[:, :3].any()
    model.save_pretrained(str(tmp_path))
    plain = SparseEncoder(str(tmp_path), device="cpu")
    found = plain.encode(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False).cpu().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("frequency", "documents", "strength", "message"),
    [
        ([1.0], 3, 1.0, r"must be \[\d+\], as the decoder; received \[1\]"),
        (None, 0, 1.0, "number of documents"),
        (None, 1, -1.0, "strength must be finite and >= 0; received -1"),
        (None, 1, float("nan"), "strength must be finite"),
        ("silent", 3, 1.0, "with a term above 0"),
        ("too many", 3, 1.0, "received values from 0 to 4"),
    ],
)
def test_bad_input_is_refused(
    model: SparseEncoder, frequency: object, documents: int, strength: float, message: str
) -> None:
    """A wrong count would silently move every activation."""
    size = vocabulary_size(model)
    given = {"silent": np.zeros(size), "too many": np.r_[4, np.zeros(size - 1)]}
    counts = (
        given.get(frequency, np.ones(size)) if isinstance(frequency, str) or frequency is None else frequency
    )
    before = bias(model)
    with pytest.raises(ValueError, match=message):
        shift_bias_by_idf(model, counts, documents, strength)
    assert torch.equal(bias(model), before)


def test_a_threshold_drops_the_terms_below_it_and_no_other(model: SparseEncoder) -> None:
    """log(1 + relu(x - t)) from the activations before: y = log(1 + relu(e^y - 1 - t))."""
    before = model.encode(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False).cpu().numpy()
    threshold = float(np.median(np.expm1(before[before > 0])))
    assert lower_bias(model, threshold) is model
    after = model.encode(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False).cpu().numpy()
    expected = np.log1p(np.maximum(np.expm1(before) - threshold, 0))
    np.testing.assert_allclose(after, expected, atol=1e-5)
    assert 0 < (after > 0).sum() < (before > 0).sum()
    with pytest.raises(ValueError, match="threshold must be finite; received inf"):
        lower_bias(model, float("inf"))
