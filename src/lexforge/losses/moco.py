"""MoCo: keys of a moving-average encoder, negatives from a queue of the last batches (section 12)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lexforge.common.similarity import agreed_similarity
from lexforge.losses.base import EmbeddingLoss, Features
from lexforge.losses.false_negatives import BatchTexts, share_left_out
from lexforge.losses.gradient_cache import MiniBatchSize
from lexforge.losses.infonce import ranking_cross_entropy
from lexforge.losses.precision import in_float32
from lexforge.losses.queue import KeyQueue
from lexforge.losses.similarity import unit_rows
from lexforge.models.momentum import MomentumEncoder, is_training
from lexforge.models.structure import embedding_dimension
from lexforge.settings import check_positive


@in_float32
def moco(
    query: Tensor,
    key: Tensor,
    queue: Tensor,
    temperature: float = 0.07,
    *,
    left_out: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of picking a query's own key, in column 0, before the keys of a queue.

    L = mean over rows i of `-log( exp(q_i k_i / T) / (exp(q_i k_i / T) + sum over queue r of
    exp(q_i r / T)) )`, by dot product: pass L2-normalised rows for MoCo's cosine.

    Args:
        query: `[B, D]` float.
        key: `[B, D]` float; row i belongs to query i. No gradient flows into it.
        queue: `[Q, D]` float; no gradient flows into it. With Q = 0 the loss is 0.
        temperature: T, > 0.
        left_out: `[B, Q]` bool, True where a key of the queue is no negative of a query (section 15); None
            leaves out no key.

    Returns:
        0-dim float; 0 for an empty batch, connected to the graph.

    Raises:
        ValueError: If shapes disagree or the temperature is not positive.

    Source: docs/losses.md, section 12; He et al. 2020 (arXiv 1911.05722), equation 1 and algorithm 1.
    """
    check_positive(temperature=temperature)
    if query.dim() != 2 or query.shape != key.shape:
        raise ValueError(
            f"query and key must both be [B, D]; received {tuple(query.shape)} and {tuple(key.shape)}"
        )
    if queue.dim() != 2 or queue.shape[1] != query.shape[1]:
        raise ValueError(f"queue must be [Q, {query.shape[1]}]; received {tuple(queue.shape)}")
    own = (query * key.detach()).sum(dim=-1, keepdim=True)
    negatives = query @ queue.detach().T  # [B, Q]
    if left_out is not None:
        negatives = negatives.masked_fill(left_out, -torch.inf)
    scores = torch.cat([own, negatives], dim=1)  # [B, 1 + Q]
    first = torch.zeros(len(query), dtype=torch.int64, device=query.device)
    return ranking_cross_entropy(scores, first, temperature)


class MoCoLoss(EmbeddingLoss):
    """Momentum contrast: a batch is ranked against thousands of keys that were encoded in earlier batches.

        L = mean over i of -log( exp(q_i k_i / T) / (exp(q_i k_i / T) + sum over queue r of exp(q_i r / T)) )

    The first column is encoded by the model (q), the second by a moving average of it without gradient (k);
    both are L2-normalised. After each training micro-batch the keys of all ranks enter a queue of the last
    `queue_size` keys, the negatives of the next ones. All ranks hold the same queue. It also holds the
    identities of the keys' texts: a key whose text is known to answer the query is left out (docs/losses.md,
    section 15).

    While the queue is empty (the very first batch, or an evaluation before any training) the other keys of
    the batch, of all ranks, stand in as negatives. In evaluation keys come from the moving average as it
    stands and negatives from the queue as it stands; neither changes.

    When to use it: pairs `(anchor, positive)` where the batch that fits in memory is too small for
    `InfoNCELoss`. With large batches InfoNCE learns more from each pair, since it trains both sides. The
    second column gets no gradient: for data that is not symmetric, train both directions.

    What to tune: `queue_size` (a few hundred batches at most), `momentum` (.999, or .99 for runs of a few
    thousand steps) and `temperature` (.05 to .1).
    The similarity is the cosine by definition: a model that is searched by dot product is refused.

    Its state (queue, moving average) is saved and restored by `lexforge.runs.RunStateCallback`.

    Args:
        model: The `SentenceTransformer` or `SparseEncoder` to train. The queue is as wide as its embedding:
            for a sparse model that is the vocabulary, 4 bytes per term and key.
        queue_size: Q, at least the batch of all ranks.
        momentum: Share of the moving average that an optimizer step keeps, in [0, 1).
        temperature: T, > 0.
        mini_batch_size: Rows that are encoded at once, "auto" or None; see `EmbeddingLoss`.

    Raises:
        ValueError: If a number is out of range, the model embeds no texts or is searched by dot product, a
            batch does not have two text columns, or the queue is shorter than the batch of all ranks.

    Source: docs/losses.md, section 12; He et al. 2020 (arXiv 1911.05722), section 3.
    """

    once_per_batch = True

    card_settings = ("temperature",)

    def __init__(
        self,
        model: nn.Module,
        queue_size: int = 4096,
        momentum: float = 0.999,
        temperature: float = 0.07,
        mini_batch_size: MiniBatchSize = None,
    ) -> None:
        super().__init__(model, mini_batch_size, gather_across_devices=True)
        check_positive(temperature=temperature)
        self.similarity = agreed_similarity(model, "cosine", loss="MoCoLoss")
        self.temperature = temperature
        self.momentum_encoder = MomentumEncoder(model, momentum)
        self.queue = KeyQueue(queue_size, embedding_dimension(model), with_texts=True)

    def embed(self, inputs: list[Features]) -> list[Tensor]:
        """Encode the first column by the model, the second by its moving average.

        Args:
            inputs: Two columns.

        Returns:
            Two `[B, D]` float tensors; the second has no gradient.
        """
        if len(inputs) != 2:
            raise ValueError(
                f"MoCoLoss needs the columns (anchor, positive); received {len(inputs)} text columns"
            )
        return [*super().embed(inputs[:1]), self.momentum_encoder.encode(self.model, inputs[1])]

    def compute_loss(
        self, embeddings: list[Tensor], features: list[Features] | None, labels: Tensor | None
    ) -> Tensor:
        """Compute the loss and, in training, enqueue the keys; see `EmbeddingLoss.forward`.

        Args:
            embeddings: Queries and keys, `[B, D]` float each.
            features: Needed: without them the second column was not encoded by the moving average.
            labels: Not read.

        Returns:
            0-dim float.
        """
        if features is None:
            raise ValueError(
                "MoCoLoss encodes the second column by its own moving average: it cannot take embeddings of "
                "another loss (SpladeLoss, CachedSpladeLoss); pass it to the trainer itself"
            )
        queries, keys = (unit_rows(rows) for rows in embeddings)
        keys = keys.to(queries.dtype)  # the moving average keeps its format where the model gets another one
        texts = BatchTexts.of(features, gather=True)
        if len(self.queue):
            held_texts = self.queue.held_texts()  # [Q]
            left_out = None if texts is None or held_texts is None else texts.answers(held_texts)  # [B, Q]
            held = self.queue.contents()[0].to(queries.dtype)  # [Q, D]
            loss = moco(queries, keys, held, self.temperature, left_out=left_out)
            self.metrics = {} if left_out is None else {"candidates/left_out": left_out.float().mean()}
        else:  # The other keys of the batch stand in for the queue.
            left_out = None if texts is None else texts.left_out()  # [B, P]
            scores = queries @ self._compared(keys).T
            loss = ranking_cross_entropy(scores, self._own_places(keys), self.temperature, left_out)
            self.metrics = share_left_out(left_out)  # one key of each row is its positive
        if is_training(self.model):
            self.queue.enqueue(self._compared(keys), texts=None if texts is None else texts.candidates)
        return loss

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings, for the model card."""
        own = {"queue_size": len(self.queue.keys), "momentum": self.momentum_encoder.momentum}
        return own | super().get_config_dict()

    # The paper, for the model card.
    citation = """
@inproceedings{he2020momentum,
    title={Momentum Contrast for Unsupervised Visual Representation Learning},
    author={He, Kaiming and Fan, Haoqi and Wu, Yuxin and Xie, Saining and Girshick, Ross},
    booktitle={Conference on Computer Vision and Pattern Recognition},
    pages={9729--9738},
    year={2020}
}
"""
