"""CoSENT: rank pairs of sentences by their graded labels (docs/losses.md, section 11)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lexforge.common.similarity import Similarity, agreed_similarity
from lexforge.losses.base import EmbeddingLoss, Features
from lexforge.losses.gradient_cache import MiniBatchSize
from lexforge.losses.precision import in_float32
from lexforge.losses.similarity import paired_scores
from lexforge.settings import check_positive


@in_float32
def cosent(similarities: Tensor, labels: Tensor, scale: float = 20.0) -> Tensor:
    """Penalise every two pairs whose similarities are not in the order of their labels.

    L = log( 1 + sum over (i, j) with y_i < y_j of exp(scale * (s_i - s_j)) ), in O(N log N): once the
    pairs are sorted by label, the sum over all higher labels is a cumulative log-sum-exp from the end.

    Args:
        similarities: `[N]` float, one per pair of sentences.
        labels: `[N]` number or bool, higher for more similar pairs; only their order counts.
        scale: lambda, > 0; the inverse of a temperature.

    Returns:
        0-dim float; 0 where no two labels differ, connected to the graph.

    Raises:
        ValueError: If the shapes differ, a label is NaN or the scale is not positive.

    Source: docs/losses.md, section 11; Huang et al. 2024 (doi 10.1109/TASLP.2024.3402087).
    """
    check_positive(scale=scale)
    if similarities.dim() != 1 or similarities.shape != labels.shape:
        raise ValueError(
            "similarities and labels must both be [N]; received "
            f"{tuple(similarities.shape)} and {tuple(labels.shape)}"
        )
    if labels.is_floating_point() and bool(labels.isnan().any()):
        raise ValueError(f"labels must be numbers; received NaN in row {int(labels.isnan().nonzero()[0])}")
    labels, order = (labels.int() if labels.dtype == torch.bool else labels).sort()
    scores = scale * similarities[order]
    # from_here[i] is the logarithm of the sum over j >= i of exp(-score_j).
    from_here = torch.logcumsumexp(-scores.flip(0), dim=0).flip(0)
    higher = torch.searchsorted(labels, labels, right=True)  # [N], index of the first higher label
    has_higher = higher < len(labels)
    terms = scores[has_higher] + from_here[higher[has_higher]]
    return torch.cat([scores.new_zeros(1), terms]).logsumexp(dim=0)


class CoSENTLoss(EmbeddingLoss):
    """CoSENT on pairs of sentences with a graded label.

        L = log( 1 + sum over pairs of pairs with y_i < y_j of exp(scale * (s_i - s_j)) )

    When to use it: rows `(sentence1, sentence2, label)` with a similarity score of any range, as of STS
    benchmarks, or with 0 and 1, as of paraphrase and NLI data. It learns the order of the scores, which is
    what Spearman's correlation measures, and not their values. For pairs of queries and answers without a
    score, take `InfoNCELoss`.

    What to tune: `scale` (20; at higher values only the worst inversions count), the batch size (each batch
    compares its own pairs only, so with few distinct labels it should be large) and
    `gather_across_devices`, which compares the pairs of all ranks.

    Args:
        model: The `SentenceTransformer` or `SparseEncoder` to train.
        scale: lambda, > 0.
        similarity: "cosine" or "dot", which must be the model's `similarity_fn_name`; None takes that.
        gather_across_devices: Compare the pairs of all ranks; see `EmbeddingLoss`.
        mini_batch_size: Rows that are encoded at once, "auto" or None; see `EmbeddingLoss`.

    Raises:
        ValueError: If the scale is not positive, the similarity is not the model's, or a batch does not have
            two text columns and one number per row.

    Source: docs/losses.md, section 11; Huang et al. 2024.
    """

    similarity: Similarity
    card_settings = ("scale", "similarity", "gather_across_devices")

    def __init__(
        self,
        model: nn.Module,
        scale: float = 20.0,
        similarity: Similarity | None = None,
        gather_across_devices: bool = False,
        mini_batch_size: MiniBatchSize = None,
    ) -> None:
        super().__init__(model, mini_batch_size, gather_across_devices)
        check_positive(scale=scale)
        self.similarity = agreed_similarity(model, similarity, loss="CoSENTLoss")
        self.scale = scale

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
                "CoSENTLoss needs the columns (sentence1, sentence2) and one number per row as label; "
                f"received {len(embeddings)} text columns and "
                + ("no label" if labels is None else f"labels of shape {tuple(labels.shape)}")
            )
        first, second = embeddings
        similarities = paired_scores(first, [second], self.similarity)[:, 0]  # [B]
        # Every rank computes the loss of the joint batch. They send one type, though of several data sets
        # one may have whole numbers, and the widest, because close labels must not become equal.
        labels = self._compared(labels.double()) if self.gather_across_devices else labels
        return cosent(self._compared(similarities), labels, self.scale)

    # The paper, for the model card.
    citation = """
@article{huang2024cosent,
    title={CoSENT: Consistent Sentence Embedding via Similarity Ranking},
    author={Huang, Xiang and Peng, Hao and Zou, Dongcheng and Liu, Zhiwei and Li, Jianxin and Liu, Kay and Wu, Jia and Su, Jianlin and Yu, Philip S.},
    journal={IEEE/ACM Transactions on Audio, Speech, and Language Processing},
    year={2024},
    doi={10.1109/TASLP.2024.3402087}
}
"""  # noqa: E501
