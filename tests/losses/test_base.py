"""The forward pass that every plug-in loss shares."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lexforge.losses.base import TEACHER_KEY, EmbeddingLoss


class Encoder(nn.Module):
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
        return embeddings[0].sum()


def column(first: int, rows: int = 2) -> dict[str, torch.Tensor]:
    ids = torch.arange(first, first + 2 * rows).reshape(rows, 2)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), TEACHER_KEY: torch.rand(rows, 3)}


def test_each_column_is_embedded_in_order() -> None:
    """Merged or not, the loss receives one embedding a column, in the order of the columns."""
    loss = Recorder(Encoder())
    labels = torch.tensor([1.0, 0.0])
    loss((column(first) for first in (0, 10, 20)), labels)
    embeddings, features, received_labels = loss.received
    assert [rows.flatten().tolist() for rows in embeddings] == [[1, 5], [21, 25], [41, 45]]
    assert [item["input_ids"][0, 0].item() for item in features] == [0, 10, 20]
    assert received_labels is labels


def test_the_encoder_never_sees_the_teacher_and_the_loss_does() -> None:
    """A float tensor of another width would break the merged forward and confuse a module."""
    encoder = Encoder()
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
    loss = Recorder(Encoder())
    embeddings = [torch.ones(2, 3), torch.ones(2, 3)]
    loss.compute_loss_from_embeddings(embeddings)
    assert loss.received == (embeddings, None, None)


def test_the_model_is_the_child_of_that_name() -> None:
    """The Trainer swaps the wrapped model in by this name."""
    encoder = Encoder()
    assert dict(Recorder(encoder).named_children()) == {"model": encoder}


def test_a_subclass_without_a_loss_says_so() -> None:
    """The base is not a loss."""
    with pytest.raises(NotImplementedError, match=r"EmbeddingLoss.*compute_loss"):
        EmbeddingLoss(Encoder())([column(0)])
