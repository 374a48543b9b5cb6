"""`SparseEncoder.merge` of sentence-transformers, and encoders with our parts."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sentence_transformers import SparseEncoder

from lexforge.models import TokenWeights, build_splade, fuse_splade_head

TEXTS = ["sort a list of words", "검색 문서", "the index"]

pytest.importorskip("mergekit", reason="SparseEncoder.merge needs the extra `merge` of sentence-transformers")


def moved(model: SparseEncoder) -> SparseEncoder:
    """A copy with other weights; tied ones stay tied."""
    other = copy.deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return other


def vectors(model: Any) -> torch.Tensor:
    encoded = model.encode(TEXTS, convert_to_sparse_tensor=False)
    assert isinstance(encoded, torch.Tensor)
    return encoded


def test_fused_models_merge_as_plain_ones(fresh: Callable[[], SparseEncoder]) -> None:
    """The result has the fused head on its own weights: the mean of both, and none of the inputs'."""
    plain = fresh()
    first, second = fuse_splade_head(copy.deepcopy(plain)), fuse_splade_head(moved(plain))
    expected = SparseEncoder.merge([plain, moved(plain)])
    merged = SparseEncoder.merge([first, second])
    states = merged[0](merged.preprocess(TEXTS))["token_embeddings"].detach()  # [3, L, D]
    assert states.shape[-1] == merged[0].model.config.hidden_size, "a plain output embedding makes logits"
    decoder = merged[0].model.get_output_embeddings()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore")  # of the tracer
        traced = torch.jit.trace(decoder, states)  # a traced head is the plain one
    torch.testing.assert_close(traced(states), F.linear(states, decoder.weight, decoder.bias))
    for name, tensor in merged.state_dict().items():
        middle = (first.state_dict()[name].float() + second.state_dict()[name].float()) / 2
        torch.testing.assert_close(tensor.float(), middle)
    torch.testing.assert_close(vectors(merged), vectors(expected), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(vectors(merged), vectors(first), atol=1e-3)


def test_models_with_the_head_of_bge_m3_merge(tiny_m3: Path, tmp_path: Path) -> None:
    """The module has a configuration and weights of its own, which merging compares and averages."""
    first = build_splade(tiny_m3, device="cpu")
    second = moved(first)
    merged = SparseEncoder.merge([first, second])
    assert isinstance(merged[1], TokenWeights)
    middle = (first[1].sparse_linear.weight + second[1].sparse_linear.weight) / 2
    torch.testing.assert_close(merged[1].sparse_linear.weight, middle)
    merged.save_pretrained(str(tmp_path))
    torch.testing.assert_close(vectors(build_splade(tmp_path, device="cpu")), vectors(merged))
