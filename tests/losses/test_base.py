"""The forward pass that every plug-in loss shares."""

from __future__ import annotations

import copy

import pytest
import torch
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer.losses import GISTEmbedLoss
from sentence_transformers.sparse_encoder.losses import SparseCoSENTLoss
from torch import nn

from lexforge.losses import (
    CoSENTLoss,
    HCLLoss,
    InfoNCELoss,
    MoCoLoss,
    NeuralSparseLoss,
    NWSLoss,
    load_loss_tensors,
    loss_parameters,
    loss_tensors,
)
from lexforge.losses.base import TEACHER_KEY, EmbeddingLoss
from lexforge.models import MomentumEncoder


class SumEncoder(nn.Module):
    """Embeds a text as the sum of its ids, and writes into the features as real modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[set[str]] = []

    def forward(self, features: dict) -> dict:
        self.seen.append(set(features))
        features["token_embeddings"] = torch.zeros(1)
        features["sentence_embedding"] = features["input_ids"].float().sum(dim=1, keepdim=True)
        return features


class Recorder(EmbeddingLoss):
    def compute_loss(self, embeddings, features, labels):
        self.received = embeddings, features, labels
        assert not torch.is_autocast_enabled("cpu")
        return embeddings[0].sum()


def column(first: int, rows: int = 2) -> dict[str, torch.Tensor]:
    ids = torch.arange(first, first + 2 * rows).reshape(rows, 2)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), TEACHER_KEY: torch.rand(rows, 3)}


def test_each_column_is_embedded_in_order() -> None:
    """Merged or not, the loss receives one embedding a column, in the order of the columns."""
    loss = Recorder(SumEncoder())
    labels = torch.tensor([1.0, 0.0])
    loss((column(first) for first in (0, 10, 20)), labels)
    embeddings, features, received_labels = loss.received
    assert [rows.flatten().tolist() for rows in embeddings] == [[1, 5], [21, 25], [41, 45]]
    assert [item["input_ids"][0, 0].item() for item in features] == [0, 10, 20]
    assert received_labels is labels


def test_the_encoder_never_sees_the_teacher_and_the_loss_does() -> None:
    """A float tensor of another width would break the merged forward and confuse a module."""
    encoder = SumEncoder()
    loss = Recorder(encoder)
    columns = [column(0), column(10)]
    loss(columns)
    assert encoder.seen
    assert all(keys == {"input_ids", "attention_mask"} for keys in encoder.seen)
    assert all(
        item[TEACHER_KEY] is given[TEACHER_KEY] for item, given in zip(loss.received[1], columns, strict=True)
    )
    # what the modules write stays out of the batch, so that a second loss can read it again
    assert all(set(given) == {"input_ids", "attention_mask", TEACHER_KEY} for given in columns)


def test_embeddings_of_another_loss_come_without_features() -> None:
    """`SpladeLoss` and `CachedSpladeLoss` encode by themselves."""
    loss = Recorder(SumEncoder())
    embeddings = [torch.ones(2, 3), torch.ones(2, 3)]
    loss.compute_loss_from_embeddings(embeddings)
    assert loss.received == (embeddings, None, None)


@pytest.mark.parametrize("make", [CoSENTLoss, HCLLoss, InfoNCELoss, MoCoLoss, NWSLoss])
def test_a_similarity_that_the_model_got_later_is_refused(make, tiny_dense: SentenceTransformer) -> None:
    """The model would be trained by one similarity and saved with another one."""
    arguments = {"label_similarity": torch.eye(2), "aggregate": "mean"} if make is NWSLoss else {}
    loss = make(tiny_dense, **arguments)
    tiny_dense.similarity_fn_name = "dot"
    texts = [tiny_dense.preprocess(["sort a list", "open a file"])] * (1 if make is NWSLoss else 2)
    with pytest.raises(ValueError, match=f"{make.__name__} trains by 'cosine', .* searched by 'dot'"):
        loss(texts, torch.eye(2) if make is NWSLoss else torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("make", [CoSENTLoss, InfoNCELoss, NWSLoss])
def test_labels_in_a_list_are_refused_by_name(make, tiny_dense: SentenceTransformer) -> None:
    """A loop of one's own may hand over the labels of its rows; "list has no attribute dim" told nothing."""
    arguments = {"label_similarity": torch.eye(2), "aggregate": "mean"} if make is NWSLoss else {}
    texts = [tiny_dense.preprocess(["sort a list", "open a file"])] * (1 if make is NWSLoss else 2)
    with pytest.raises(TypeError, match=rf"{make.__name__} takes labels as a tensor.*torch\.tensor.*list"):
        make(tiny_dense, **arguments)(texts, [[1, 0], [0, 1]] if make is NWSLoss else [0.0, 1.0])


def test_a_loss_of_sentence_transformers_may_give_it(tiny_splade: SparseEncoder) -> None:
    """SparseCoSENTLoss makes the cosine the similarity of the model that it is made with."""
    loss = NeuralSparseLoss(tiny_splade, self_reconstruction_weight=0.0, distillation_weight=0.0)
    SparseCoSENTLoss(tiny_splade)
    with pytest.raises(ValueError, match=r"NeuralSparseLoss trains by 'dot', .* searched by 'cosine'"):
        loss([tiny_splade.preprocess(["sort a list", "open a file"])] * 2)


def test_the_model_is_the_child_of_that_name() -> None:
    """The Trainer swaps the wrapped model in by this name."""
    encoder = SumEncoder()
    assert dict(Recorder(encoder).named_children()) == {"model": encoder}


def test_a_subclass_without_a_loss_says_so() -> None:
    """The base is not a loss."""
    with pytest.raises(NotImplementedError, match=r"EmbeddingLoss.*compute_loss"):
        EmbeddingLoss(SumEncoder())([column(0)])


def test_embeddings_reach_the_loss_in_float32_outside_autocast() -> None:
    """Sums of exponentials in bfloat16 lose what separates close scores; float64 stays float64."""
    loss = Recorder(SumEncoder())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss.compute_loss_from_embeddings([torch.ones(2, 3, dtype=torch.bfloat16)])
        assert loss.received[0][0].dtype == torch.float32
    loss.compute_loss_from_embeddings([torch.ones(2, 3, dtype=torch.float64)])
    assert loss.received[0][0].dtype == torch.float64
    with pytest.raises(ValueError, match="at least one text column"):
        loss([])
    with pytest.raises(TypeError, match="Recorder takes a list with one dict per text column"):
        loss(column(0))


class Stateful(EmbeddingLoss):
    """A parameter, a frozen one, two buffers and a momentum encoder."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.prototypes = nn.Parameter(torch.randn(2, 3))
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)
        self.register_buffer("count", torch.tensor(4))
        self.register_buffer("derived", torch.zeros(5), persistent=False)
        self.teacher = MomentumEncoder(model, 0.5)


class Wrapper(nn.Module):
    """As MatryoshkaLoss and SpladeLoss wrap a loss."""

    def __init__(self, model: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.model, self.loss = model, loss


OWN = {"prototypes", "frozen", "count", "teacher.weight", "teacher.bias"}


def test_the_state_is_everything_but_the_model() -> None:
    """Under another loss or in a dictionary, the names are those of the path."""
    model = nn.Linear(3, 3)
    loss = Stateful(model)
    assert set(loss_tensors(loss)) == OWN
    assert loss_tensors(loss)["prototypes"] is loss.prototypes
    assert set(loss_tensors(Wrapper(model, loss))) == {f"loss.{name}" for name in OWN}
    both = nn.ModuleDict({"a": loss, "b": Recorder(model)})
    assert set(loss_tensors(both)) == {f"a.{name}" for name in OWN}
    assert loss_tensors(Recorder(model)) == {}
    assert [parameter is loss.prototypes for parameter in loss_parameters(Wrapper(model, loss))] == [True]


def test_a_step_that_the_average_has_not_seen_is_taken_in_before_it_is_saved() -> None:
    """Else a resumed run would take the step's average from weights of a later moment, or not at all."""
    model = nn.Linear(3, 3)
    loss = Stateful(model)
    start = loss_tensors(loss)["teacher.weight"].clone()
    with torch.no_grad():
        model.weight.add_(1)
    for _ in range(2):
        torch.testing.assert_close(loss_tensors(loss)["teacher.weight"], start + 0.5)


def test_what_was_saved_comes_back_and_counts_as_followed() -> None:
    """Into the same tensors: the optimizer holds the parameter."""
    model = nn.Linear(3, 3)
    saved = {name: tensor.detach().clone() for name, tensor in loss_tensors(Stateful(model)).items()}
    other = Stateful(model)
    parameter = other.prototypes
    with torch.no_grad():
        other.count += 3
    saved["teacher.weight"] += 1  # an average away from the model
    load_loss_tensors(other, saved)
    assert other.prototypes is parameter
    torch.testing.assert_close(dict(loss_tensors(other)), saved, rtol=0, atol=0)


def test_a_state_that_does_not_fit_is_refused_whole() -> None:
    """Names, shapes and dtypes; nothing is written."""
    loss = Stateful(nn.Linear(3, 3))
    good = {name: tensor.detach().clone() for name, tensor in loss_tensors(loss).items()}
    wrong = {name: tensor for name, tensor in good.items() if name != "count"}
    wrong |= {
        "queue.keys": torch.zeros(2),
        "prototypes": torch.zeros(4, 3),
        "frozen": torch.zeros(2).double(),
    }
    with pytest.raises(ValueError, match="does not fit this Stateful") as caught:
        load_loss_tensors(loss, wrong)
    for part in (
        "count is missing",
        "queue.keys does not belong to this loss",
        r"prototypes is torch.float32 (4, 3), not torch.float32 (2, 3)",
        "frozen is torch.float64 (2,)",
    ):
        assert part in str(caught.value)
    torch.testing.assert_close(dict(loss_tensors(loss)), good, rtol=0, atol=0)


def test_a_guide_is_no_state_of_the_loss(tiny_dense: SentenceTransformer) -> None:
    """A guide is an encoder that nobody trains: in every checkpoint it would be saved in vain."""
    loss = GISTEmbedLoss(tiny_dense, copy.deepcopy(tiny_dense))
    assert loss_tensors(loss) == {}
    assert loss_parameters(loss) == []
