"""InfoNCE with in-batch and hard negatives (docs/losses.md, section 1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lexforge.common.similarity import Similarity, agreed_similarity
from lexforge.losses.base import EmbeddingLoss, Features
from lexforge.losses.false_negatives import BatchTexts, share_left_out
from lexforge.losses.gradient_cache import MiniBatchSize
from lexforge.losses.precision import in_float32
from lexforge.losses.similarity import scores_of_columns
from lexforge.settings import check_positive


@in_float32
def info_nce(
    anchor: Tensor,
    positive: Tensor,
    negatives: Tensor | None = None,
    temperature: float = 0.07,
    similarity: Similarity = "cosine",
) -> Tensor:
    """Cross-entropy of picking an anchor's own positive among all candidates of the batch.

    L = mean over rows i of `-log( exp(s_ii / T) / sum over candidates c of exp(s_ic / T) )`. The candidates
    of every row are all B positives and all B * K negatives.

    Args:
        anchor: `[B, D]` float.
        positive: `[B, D]` float; row i belongs to anchor i.
        negatives: `[B, K, D]` float, K hard negatives per anchor, or None.
        temperature: T, > 0.
        similarity: "cosine" or "dot".

    Returns:
        0-dim float; 0 for an empty batch, connected to the graph.

    Raises:
        ValueError: If shapes disagree, the temperature is not positive or the similarity is unknown.

    Source: docs/losses.md, section 1; van den Oord et al. 2018 (arXiv 1807.03748), equation 4.
    """
    check_positive(temperature=temperature)
    if anchor.dim() != 2 or anchor.shape != positive.shape:
        raise ValueError(
            f"anchor and positive must both be [B, D]; received {tuple(anchor.shape)} and "
            f"{tuple(positive.shape)}"
        )
    candidates = positive
    if negatives is not None:
        if negatives.dim() != 3 or (negatives.shape[0], negatives.shape[2]) != tuple(anchor.shape):
            raise ValueError(
                f"negatives must be [{anchor.shape[0]}, K, {anchor.shape[1]}]; received "
                f"{tuple(negatives.shape)}"
            )
        candidates = torch.cat([positive, negatives.flatten(0, 1)])
    scores = scores_of_columns(anchor, [candidates], similarity)
    own = torch.arange(len(anchor), device=anchor.device)  # [B]
    return ranking_cross_entropy(scores, own, temperature)


def ranking_cross_entropy(
    scores: Tensor, target: Tensor, temperature: float, left_out: Tensor | None = None
) -> Tensor:
    """Softmax cross-entropy of each row's target candidate.

    Args:
        scores: `[B, N]` float, similarity of each row to each candidate.
        target: `[B]` int64, the column of each row's positive.
        temperature: > 0, divides the scores.
        left_out: `[B, N]` bool, candidates that do not stand in the softmax; None leaves out none.

    Returns:
        0-dim float, the mean over rows; 0 for an empty batch, connected to the graph.
    """
    if not len(scores):
        return scores.sum()
    scores = scores / temperature
    if left_out is not None:
        scores = scores.masked_fill(left_out, -torch.inf)
    return F.cross_entropy(scores, target)


class InfoNCELoss(EmbeddingLoss):
    """InfoNCE (multiple negatives ranking) with in-batch and hard negatives.

        L = mean over rows i of -log( exp(s_ii / T) / sum over candidates c of exp(s_ic / T) )

    The candidates of each anchor are the positives and the hard negatives of the whole batch. Candidates that
    are known to answer the anchor are left out, and equal texts count once (docs/losses.md, section 15).
    `symmetric` averages L with its mirror, each positive picking its anchor among all anchors.

    When to use it: pairs `(anchor, positive)` of a query and its answer, with any number of further columns
    `negative_1, negative_2, ...` of mined negatives. The first choice for a retriever, dense or sparse.

    What to tune: the batch size first (more negatives; `gather_across_devices` takes those of all ranks),
    then `temperature` (.02 to .1 for the cosine; near 1 for the dot product of a sparse model), then mined
    negatives. `symmetric` helps where both columns hold texts of the same kind.

    Args:
        model: The `SentenceTransformer` or `SparseEncoder` to train.
        temperature: T, > 0.
        similarity: "cosine" or "dot", which must be the model's `similarity_fn_name`; None takes that.
        symmetric: Also rank the anchors for each positive.
        gather_across_devices: Take the candidates of all ranks; see `EmbeddingLoss`.
        mini_batch_size: Rows that are encoded at once, "auto" or None; see `EmbeddingLoss`.

    Attributes:
        metrics: `candidates/left_out`, the share of negatives that were left out in the last call.

    Raises:
        ValueError: If the temperature is not positive, the similarity is not the model's, or a batch has
            fewer than two text columns.

    Source: docs/losses.md, section 1; van den Oord et al. 2018 (arXiv 1807.03748), equation 4; in-batch
    negatives: Henderson et al. 2017 (arXiv 1705.00652).
    """

    similarity: Similarity
    card_settings = ("temperature", "similarity", "symmetric", "gather_across_devices")

    def __init__(
        self,
        model: nn.Module,
        temperature: float = 0.07,
        similarity: Similarity | None = None,
        symmetric: bool = False,
        gather_across_devices: bool = False,
        mini_batch_size: MiniBatchSize = None,
    ) -> None:
        super().__init__(model, mini_batch_size, gather_across_devices)
        check_positive(temperature=temperature)
        self.similarity = agreed_similarity(model, similarity, loss="InfoNCELoss")
        self.temperature = temperature
        self.symmetric = symmetric

    def compute_loss(
        self, embeddings: list[Tensor], features: list[Features] | None, labels: Tensor | None
    ) -> Tensor:
        """Compute the loss; see `EmbeddingLoss.forward`.

        Args:
            embeddings: One `[B, D]` float tensor per column: anchors, positives, negatives.
            features: One dict per column, whose texts say which candidates are left out; None leaves out
                none.
            labels: Not read.

        Returns:
            0-dim float.
        """
        if len(embeddings) < 2:
            raise ValueError(
                "InfoNCELoss needs the columns (anchor, positive, negative_1, ...); received "
                f"{len(embeddings)} text column"
            )
        anchor, positive, *_ = embeddings
        texts = BatchTexts.of(features, self.gather_across_devices)
        left_out = None if texts is None else texts.left_out()  # [B, N]
        self.metrics = share_left_out(left_out)
        loss = self._ranking(anchor, embeddings[1:], left_out)
        if self.symmetric:
            mirrored = None if texts is None else texts.mirrored()  # [B, P]
            loss = (loss + self._ranking(positive, [anchor], mirrored)) / 2
        return loss

    def _ranking(self, queries: Tensor, columns: list[Tensor], left_out: Tensor | None) -> Tensor:
        """Let each query pick its own row of the first column among the rows of all columns."""
        candidates = [self._compared(rows) for rows in columns]
        scores = scores_of_columns(queries, candidates, self.similarity)  # [B, N]
        return ranking_cross_entropy(scores, self._own_places(queries), self.temperature, left_out)

    # The paper, for the model card.
    citation = """
@misc{oord2018representation,
    title={Representation Learning with Contrastive Predictive Coding},
    author={van den Oord, Aaron and Li, Yazhe and Vinyals, Oriol},
    year={2018},
    eprint={1807.03748},
    archivePrefix={arXiv}
}
"""
