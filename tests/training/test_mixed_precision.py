"""Every loss under bf16 and fp16 autocast gives what float32 gives, up to the rounding of the encoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer, SparseEncoder
from torch import Tensor, nn

from lexforge.losses import (
    CoSENTLoss,
    HCLLoss,
    InfoNCELoss,
    MoCoLoss,
    NeuralSparseLoss,
    NWSLoss,
    penalty_weights,
)
from lexforge.losses.base import TEACHER_KEY
from lexforge.models import build_splade, fuse_splade_head
from lexforge.settings import PRESETS

COLUMNS = (
    ["sort a list", "read the file", "graph of a tree", "서울 검색"],
    ["the list sorted", "open file and read", "node and edge of a graph", "검색 질문"],
    ["close a path", "number of a string", "train model", "hash"],
)
LABELS = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 1]])
LABEL_SIMILARITY = torch.tensor([[0.0, 0.2, 0.5], [0.2, 0.0, 0.1], [0.5, 0.1, 0.0]])
SCALE = 1024.0  # the least a gradient scaler does: small fp16 gradients are not zero
# dtype -> largest error of a part (relative to its size or to 1) and of the gradients' norm, least cosine of
# the gradients. Only the encoder runs in the short format, of 8 (bf16) and 11 (fp16) bits: errors of 2^-9 and
# 2^-12 an operation, over two layers and divided by the temperature; and the maximum over tokens may fall on
# another token. Measured, the worst of all losses: .0043, .0137, .9927 and .0022, .0056, .9974.
BOUNDS = {torch.bfloat16: (0.01, 0.03, 0.98), torch.float16: (0.005, 0.012, 0.995)}
DENSE: dict[str, tuple[Callable[[nn.Module], nn.Module], int, Tensor | None]] = {
    "cosent": (lambda model: CoSENTLoss(model), 2, torch.tensor([0.9, 0.1, 0.5, 0.0])),
    "infonce": (lambda model: InfoNCELoss(model), 3, None),
    "hcl": (lambda model: HCLLoss(model), 2, None),
    "moco": (lambda model: MoCoLoss(model, queue_size=8), 2, None),
    "nws": (lambda model: NWSLoss(model, LABEL_SIMILARITY, aggregate="mean", queue_size=8), 1, LABELS),
}


def outcome(
    model: nn.Module, make: Callable[[nn.Module], nn.Module], features: Any, labels: Any, dtype: torch.dtype
) -> tuple[dict[str, Tensor], Tensor]:
    """Parts and all gradients of one backward without dropout."""
    torch.manual_seed(0)  # of prototypes
    model.eval()
    loss = make(model)
    model.zero_grad()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        parts = loss(features, labels)
    parts = parts if isinstance(parts, dict) else {"loss": parts}
    assert {part.dtype for part in parts.values()} == {torch.float32}
    (SCALE * sum(parts.values())).backward()  # type: ignore[union-attr]
    gradients = [p.grad.flatten() / SCALE for p in model.parameters() if p.grad is not None]
    return {name: part.detach() for name, part in parts.items()}, torch.cat(gradients)


def assert_short_formats_are_close(
    model: nn.Module, make: Callable[[nn.Module], nn.Module], features: Callable[[], Any], labels: Any
) -> None:
    parts, gradients = outcome(model, make, features(), labels, torch.float32)
    for dtype, (largest_error, largest_stretch, least_cosine) in BOUNDS.items():
        short_parts, short_gradients = outcome(model, make, features(), labels, dtype)
        for name, part in parts.items():
            error = (short_parts[name] - part).abs() / part.abs().clamp_min(1)
            assert error < largest_error, f"{dtype}, {name}: {short_parts[name]:.5f} for {part:.5f}"
        assert bool(torch.isfinite(short_gradients).all()), dtype
        cosine = torch.cosine_similarity(short_gradients.double(), gradients.double(), dim=0)
        assert cosine > least_cosine, (dtype, float(cosine))
        ratio = short_gradients.norm() / gradients.norm()
        assert abs(ratio - 1) < largest_stretch, (dtype, float(ratio))


@pytest.mark.parametrize("preset", PRESETS)
def test_neural_sparse_presets(tiny_splade: SparseEncoder, tiny_m3: Path, preset: str) -> None:
    """With hard negatives and a teacher; a sum over the vocabulary in a short format loses small terms."""
    numbers = PRESETS[preset].loss  # type: ignore[index]
    model = build_splade(tiny_m3, device="cpu") if preset == "bge-m3" else fuse_splade_head(tiny_splade)
    model.similarity_fn_name = numbers.similarity
    special = model.tokenizer.all_special_ids

    def make(model: nn.Module) -> nn.Module:
        idf = torch.linspace(0.1, 3, len(model.tokenizer))
        weights = penalty_weights(numbers, idf, special, [7])
        return NeuralSparseLoss(
            model, penalty_weights=weights, special_token_ids=special, **numbers.arguments()
        )

    generator = torch.Generator().manual_seed(3)
    teacher = [torch.randn(4, 8, generator=generator) for _ in COLUMNS]

    def features() -> list[dict[str, Any]]:
        tokens = [model.preprocess(texts) for texts in COLUMNS]
        extra = [{TEACHER_KEY: rows} for rows in teacher] if numbers.distillation_weight else [{}] * 3
        return [a | b for a, b in zip(tokens, extra, strict=True)]

    assert_short_formats_are_close(model, make, features, None)


@pytest.mark.parametrize("name", DENSE)
def test_dense_losses(tiny_dense: SentenceTransformer, name: str) -> None:
    """Temperatures of .05 multiply the error of a cosine by 20; the losses add none of their own."""
    make, columns, labels = DENSE[name]

    def features() -> list[dict[str, Any]]:
        return [tiny_dense.preprocess(texts) for texts in COLUMNS[:columns]]

    assert_short_formats_are_close(tiny_dense, make, features, labels)
