"""The average of the trained weights with the start, and the threshold, by hand."""

from __future__ import annotations

import pytest
import torch
from sentence_transformers import SparseEncoder
from torch import nn

from lexforge.sparsity import Finishing


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def test_the_average_is_taken_of_each_weight_once() -> None:
    """Worked by hand: 0.75 * 5 + 0.25 * 1 = 4, also where two modules share the weight."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    nn.init.constant_(model[0].weight, 1.0)
    finishing = Finishing(model, 0.25)
    nn.init.constant_(model[0].weight, 5.0)
    finishing.apply(model)
    assert model[1].weight.tolist() == [[4.0, 4.0], [4.0, 4.0]]
    assert model[0].weight is model[1].weight


def test_a_share_of_nothing_changes_no_bit() -> None:
    """Without the option a run must stay what it was."""
    model = nn.Linear(3, 3)
    finishing = Finishing(model, 0.0)
    nn.init.normal_(model.weight)
    before = weights(model)
    finishing.apply(model)
    with finishing.in_place(model):
        assert all(torch.equal(tensor, before[name]) for name, tensor in weights(model).items())
    assert finishing.start == {}


@pytest.mark.parametrize("threshold", [-0.1, float("inf"), float("nan")])
def test_a_threshold_out_of_range_is_refused(threshold: float) -> None:
    """A negative one would activate terms instead of dropping them."""
    with pytest.raises(ValueError, match="prune_threshold must be finite and >= 0"):
        Finishing(nn.Linear(1, 1), 0.0, threshold)


def test_the_threshold_follows_the_average_and_an_evaluation_undoes_both(tiny_splade: SparseEncoder) -> None:
    """Only the decoder's bias is lowered, once, and a block gives the trained weights back to the bit."""
    model = tiny_splade
    finishing = Finishing(model, 0.5, 0.2)
    start = weights(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    trained = weights(model)
    with finishing.in_place(model):
        inside = weights(model)
    assert all(torch.equal(tensor, trained[name]) for name, tensor in weights(model).items())
    finishing.apply(model)
    for name, tensor in weights(model).items():
        assert torch.equal(tensor, inside[name])
        lowered = 0.2 if name.endswith("predictions.bias") else 0.0
        torch.testing.assert_close(tensor, start[name] + 0.5 - lowered)
    assert any(name.endswith("predictions.bias") for name in start)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    """A share of 1 would throw the training away without a word."""
    with pytest.raises(ValueError, match=r"start_share must lie in \[0, 1\)"):
        Finishing(nn.Linear(1, 1), share)
