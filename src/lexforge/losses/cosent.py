"""CoSENT: rank pairs of sentences by their graded labels (seed 002)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lexforge.common.ranks import rows_of_all_ranks
from lexforge.common.similarity import Similarity, check_similarity, similarity_of
from lexforge.losses.base import EmbeddingLoss, Features


def check_scale(scale: float) -> None:
    """Refuse a scale that is not a positive finite number.

    Raises:
        ValueError: With the value received.
    """
    if not 0 < scale < float("inf"):
        raise ValueError(f"scale must be > 0 and finite; received {scale}")


def cosent(similarities: Tensor, labels: Tensor, scale: float = 20.0) -> Tensor:
    """Penalise each two pairs whose similarities are not in the order of their labels.

    L = log( 1 + sum over (i, j) with y_i < y_j of exp(scale * (s_i - s_j)) ), in O(N log N): pairs sorted by
    label, the sum over all higher labels is a cumulative log-sum-exp from the end.

    Args:
        similarities: `[N]` float, one a pair of sentences.
        labels: `[N]` number or bool, higher for more similar pairs; only their order counts.
        scale: lambda of the seed, > 0; the inverse of a temperature.

    Returns:
        0-dim float; 0 where no two labels differ, connected to the graph.

    Raises:
        ValueError: If the shapes differ, a label is NaN or the scale is not positive.

    Source: seed 002; Huang et al. 2024 (doi 10.1109/TASLP.2024.3402087).
    """
    check_scale(scale)
    if similarities.dim() != 1 or similarities.shape != labels.shape:
        raise ValueError(
            "similarities and labels must both be [N]; received "
            f"{tuple(similarities.shape)} and {tuple(labels.shape)}"
        )
    if labels.is_floating_point() and bool(labels.isnan().any()):
        raise ValueError(f"labels must be numbers; received NaN in row {int(labels.isnan().nonzero()[0])}")
    labels, order = (labels.int() if labels.dtype == torch.bool else labels).sort()
    scores = scale * similarities.to(torch.promote_types(similarities.dtype, torch.float32))[order]
    # from_here[i] = log of the sum over j >= i of exp(-score_j)
    from_here = torch.logcumsumexp(-scores.flip(0), dim=0).flip(0)
    higher = torch.searchsorted(labels, labels, right=True)  # the first pair of a higher label
    has_higher = higher < len(labels)
    terms = scores[has_higher] + from_here[higher[has_higher]]
    return torch.cat([scores.new_zeros(1), terms]).logsumexp(dim=0)


class CoSENTLoss(EmbeddingLoss):
    """CoSENT on pairs of sentences with a graded label.

        L = log( 1 + sum over pairs of pairs with y_i < y_j of exp(scale * (s_i - s_j)) )

    When to use it: rows `(sentence1, sentence2, label)` with a similarity score of any range, as of STS
    benchmarks, or with 0 and 1, as of paraphrase and NLI data. It learns the order of the scores, which is
    what Spearman's correlation measures, and not their values. With pairs of queries and answers and no
    score, take `InfoNCELoss`.

    What to tune: `scale` (20; more makes the worst inversions count alone), the batch size (each batch
    compares its own pairs only, so with few distinct labels it should be large) and
    `gather_across_devices`, which compares the pairs of all ranks: R ranks of B rows then train like one of
    R * B.

    Args:
        model: The `SentenceTransformer` or `SparseEncoder` to train.
        scale: lambda, > 0.
        similarity: "cosine" or "dot"; None takes the model's own, by which it is searched.
        gather_across_devices: Compare pairs across ranks, with gradient. Every rank needs as many rows
            (`dataloader_drop_last=True`).

    Raises:
        ValueError: At construction for a wrong scale or similarity; at the first call if the data has not
            two text columns and one number a row.

    Source: seed 002; Huang et al. 2024.
    """

    def __init__(
        self,
        model: nn.Module,
        scale: float = 20.0,
        similarity: Similarity | None = None,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(model)
        check_scale(scale)
        self.similarity: Similarity = similarity_of(model) if similarity is None else similarity
        check_similarity(self.similarity)
        self.scale = scale
        self.gather_across_devices = gather_across_devices

    def compute_loss(
        self, embeddings: list[Tensor], features: list[Features] | None, labels: Tensor | None
    ) -> Tensor:
        """Compute the loss; see `EmbeddingLoss.forward`.

        Args:
            embeddings: Two `[B, D]` float columns.
            features: Not read.
            labels: `[B]` numbers.

        Returns:
            0-dim float.
        """
        if len(embeddings) != 2 or labels is None or labels.shape != (len(embeddings[0]),):
            raise ValueError(
                "CoSENTLoss needs columns (sentence1, sentence2) and one number a row as label; received "
                f"{len(embeddings)} text columns and "
                + ("no label" if labels is None else f"labels of shape {tuple(labels.shape)}")
            )
        first, second = embeddings
        if self.similarity == "cosine":
            first, second = F.normalize(first, dim=-1), F.normalize(second, dim=-1)
        similarities = (first * second).sum(dim=-1)
        if self.gather_across_devices:  # every rank computes the joint loss
            similarities, labels = rows_of_all_ranks(similarities), rows_of_all_ranks(labels)
        return cosent(similarities, labels, self.scale)

    def get_config_dict(self) -> dict[str, Any]:
        """The settings, for the model card."""
        return {
            "scale": self.scale,
            "similarity": self.similarity,
            "gather_across_devices": self.gather_across_devices,
        }

    @property
    def citation(self) -> str:
        """The paper, for the model card."""
        return """
@article{huang2024cosent,
    title={CoSENT: Consistent Sentence Embedding via Similarity Ranking},
    author={Huang, Xiang and Peng, Hao and Zou, Dongcheng and Liu, Zhiwei and Li, Jianxin and Liu, Kay and Wu, Jia and Su, Jianlin and Yu, Philip S.},
    journal={IEEE/ACM Transactions on Audio, Speech, and Language Processing},
    year={2024},
    doi={10.1109/TASLP.2024.3402087}
}
"""  # noqa: E501
