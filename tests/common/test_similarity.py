"""One check of the similarity, and one policy for every loss: it is the model's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lexforge.common.similarity import agreed_similarity, check_similarity
from lexforge.losses import CoSENTLoss, HCLLoss, InfoNCELoss, MoCoLoss, NeuralSparseLoss, NWSLoss


def model(similarity: str | None) -> SimpleNamespace:
    return SimpleNamespace(similarity_fn_name=similarity)


def test_a_loss_takes_the_similarity_of_the_model() -> None:
    """None asks for nothing; a model that states nothing is searched by dot product."""
    assert agreed_similarity(model("cosine"), loss="L") == "cosine"
    assert agreed_similarity(model("dot"), loss="L") == "dot"
    assert agreed_similarity(model(None), loss="L") == agreed_similarity(object(), loss="L") == "dot"


def test_a_wrapped_model_is_asked_for_its_similarity() -> None:
    """DistributedDataParallel hides what it wraps; a loss would train by dot product without a word."""
    wrapped = SimpleNamespace(module=model("cosine"))
    assert agreed_similarity(wrapped, loss="L") == "cosine"
    with pytest.raises(ValueError, match="searched by 'cosine'"):
        agreed_similarity(wrapped, "dot", loss="L")


@pytest.mark.parametrize("wrong", ["Cosine", "euclidean", 1])
def test_an_unknown_similarity_is_refused(wrong: object) -> None:
    """Of the argument and of the model alike."""
    with pytest.raises(ValueError, match="received"):
        check_similarity(wrong)
    with pytest.raises(ValueError, match="received"):
        agreed_similarity(model("dot"), wrong, loss="L")
    for asked in (None, "dot"):
        with pytest.raises(ValueError, match="received"):
            agreed_similarity(model(wrong), asked, loss="L")


@pytest.mark.parametrize(
    "make",
    [
        lambda m: CoSENTLoss(m, similarity="cosine"),
        lambda m: InfoNCELoss(m, similarity="cosine"),
        lambda m: NeuralSparseLoss(m, similarity="cosine"),
        HCLLoss,
        lambda m: MoCoLoss(m, queue_size=4),
        lambda m: NWSLoss(m, torch.zeros(2, 2), aggregate="mean", queue_size=4),
    ],
    ids=["cosent", "infonce", "neural sparse", "hcl", "moco", "nws"],
)
def test_no_loss_overrides_the_model(make, tiny_splade) -> None:
    """Every loss refuses a model that is searched by dot product if it trains by the cosine."""
    with pytest.raises(ValueError, match=r"trains by 'cosine'.*searched by 'dot'"):
        make(tiny_splade)
    tiny_splade.similarity_fn_name = "cosine"
    make(tiny_splade)
