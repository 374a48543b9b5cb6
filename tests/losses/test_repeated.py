"""Our losses inside those of sentence-transformers that compute them for several layers and dimensions."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses as stock
from torch import nn

from lexforge.losses import CoSENTLoss, HCLLoss, InfoNCELoss, MoCoLoss, NeuralSparseLoss, NWSLoss

TEXTS = [["sort a list", "read a file", "search text"], ["list sorted", "file open", "index of words"]]
SCORES = torch.tensor([0.9, 0.1, 0.5])
Make = Callable[[SentenceTransformer, nn.Module], nn.Module]

WRAPPERS: dict[str, Make] = {
    "AdaptiveLayerLoss": lambda model, loss: stock.AdaptiveLayerLoss(model, loss, n_layers_per_step=-1),
    "MatryoshkaLoss": lambda model, loss: stock.MatryoshkaLoss(model, loss, [32, 16]),
    "Matryoshka2dLoss": lambda model, loss: stock.Matryoshka2dLoss(
        model, loss, [32, 16], n_layers_per_step=-1, n_dims_per_step=-1
    ),
}
SAME: dict[str, tuple[Callable[..., nn.Module], Callable[..., nn.Module]]] = {
    "InfoNCELoss": (
        lambda model: InfoNCELoss(model, temperature=0.05),
        lambda model: stock.MultipleNegativesRankingLoss(model, scale=20.0),
    ),
    "CoSENTLoss": (CoSENTLoss, stock.CoSENTLoss),
}


def value_and_gradients(model: SentenceTransformer, loss: nn.Module) -> tuple[torch.Tensor, list[Any]]:
    random.seed(0)
    model.eval()
    model.zero_grad()
    value = loss([model.preprocess(texts) for texts in TEXTS], SCORES)
    value.backward()
    return value.detach(), [None if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapped_losses_equal_those_of_sentence_transformers(
    wrapper: str, name: str, tiny_dense: SentenceTransformer
) -> None:
    """Two of our losses have twins there: wrapped alike they have the same value and gradients."""
    ours, theirs = (
        value_and_gradients(tiny_dense, WRAPPERS[wrapper](tiny_dense, make(tiny_dense)))
        for make in SAME[name]
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_hcl_can_be_wrapped(wrapper: str, tiny_dense: SentenceTransformer) -> None:
    """It has no twin; every layer and dimension adds to its value."""
    alone, _ = value_and_gradients(tiny_dense, HCLLoss(tiny_dense))
    wrapped, gradients = value_and_gradients(tiny_dense, WRAPPERS[wrapper](tiny_dense, HCLLoss(tiny_dense)))
    assert wrapped > 1.5 * alone
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


REFUSED: dict[str, Callable[..., nn.Module]] = {
    "MoCoLoss": lambda model: MoCoLoss(model, queue_size=8),
    "NWSLoss": lambda model: NWSLoss(model, np.zeros((2, 2)), aggregate="mean", queue_size=8),
    "mini-batches": lambda model: InfoNCELoss(model, mini_batch_size=2),
    "named parts": NeuralSparseLoss,
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_cannot_be_wrapped_says_why(wrapper: str, name: str, tiny_dense: SentenceTransformer) -> None:
    """A queue holds full vectors, and its keys must enter once; a raw error about shapes tells nobody."""
    tiny_dense.similarity_fn_name = "cosine"
    loss = REFUSED[name](tiny_dense)
    size = 2 if name == "mini-batches" else None
    with pytest.raises(
        ValueError, match=rf"{type(loss).__name__} cannot stand within .* received mini_batch_size={size}"
    ):
        value_and_gradients(tiny_dense, WRAPPERS[wrapper](tiny_dense, loss))
    if isinstance(loss, MoCoLoss):
        assert len(loss.queue) == 0
