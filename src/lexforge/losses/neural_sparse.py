"""The weighted sum of terms that trains a neural sparse retriever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from lexforge.common.ranks import first_gathered_row, rows_of_all_ranks, sum_over_ranks, world_size
from lexforge.common.similarity import Similarity, agreed_similarity
from lexforge.losses.base import TEACHER_KEY, EmbeddingLoss, Features
from lexforge.losses.distillation import distillation
from lexforge.losses.flops import flops, idf_flops
from lexforge.losses.infonce import ranking_cross_entropy
from lexforge.losses.minimum_activation import minimum_activation
from lexforge.losses.positive_activation import positive_activation
from lexforge.losses.self_reconstruction import self_reconstruction
from lexforge.losses.similarity import paired_scores, similarity_scores
from lexforge.losses.sparse_numbers import SparseLossNumbers
from lexforge.losses.triplet import triplet_margin


class NeuralSparseLoss(EmbeddingLoss):
    """Weighted sum of InfoNCE, self-reconstruction, positive activation, triplet margin, FLOPS, minimum
    activation and distillation, returned as named parts.

    The columns are `(anchor, positive, negative_1, ..., negative_n)`. Queries and documents (positives and
    negatives together) are regularised apart, each by its own mean activation over all ranks.
    Self-reconstruction and minimum activation are means over the columns. A term of weight 0 is not computed.
    All terms are computed in float32 (float64 for a float64 model), outside autocast.

    Distillation needs one of two things. Either every column carries the teacher's embeddings beside its
    tokens (key `teacher_embedding`, which `lexforge.training.SpladeCollator` adds); then the cosine of the
    embeddings is the teacher's score of every candidate of the batch. Or a label column holds precomputed
    scores of `(positive, negative_1, ..., negative_n)`, which are compared within each row.

    Weights, temperature and ramp are plain attributes that each call reads, so that a curriculum can write
    them.

    Args:
        model: The `SparseEncoder` to train.
        similarity: "cosine" or "dot", which must be the model's `similarity_fn_name`; None takes that.
        penalty_weights: `[V]` float, >= 0, from `idf_penalty_weights`; None is the plain FLOPS of SPLADE.
        special_token_ids: Ids that positive activation leaves out.
        gather_across_devices: Score against the documents of all ranks, with gradient, so that R ranks of B
            rows train like one rank of R * B rows.
        **numbers: Weights, temperatures and thresholds as plain keyword arguments, such as
            `flops_weight=0.003`; `SparseLossNumbers` lists their names, defaults and meaning.

    Attributes:
        numbers: The numbers that were given.
        weights: Term name -> weight in force.
        temperature: Temperature of InfoNCE in force.
        regularizer_ramp: Share r in [0, 1] of the sparsity weights in force. Penalties above 1 (special
            tokens, stop words) grow with it too: w becomes min(w, 1) + r * max(w - 1, 0).
        metrics: Detached 0-dim values of the last call that are logged and not trained on.

    Raises:
        ValueError: If a number is out of range, the similarity is not the model's, or a batch lacks the
            columns, labels or teacher embeddings that a term needs.
        TypeError: If a number has an unknown name.

    Source: docs/losses.md, sections 1 to 8.
    """

    penalty_weights: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        *,
        similarity: Similarity | None = None,
        penalty_weights: Tensor | None = None,
        special_token_ids: Sequence[int] = (),
        gather_across_devices: bool = False,
        **numbers: Any,
    ) -> None:
        super().__init__(model)
        self.similarity = agreed_similarity(model, similarity, loss="NeuralSparseLoss")
        self.numbers = SparseLossNumbers(**numbers)
        self.weights = self.numbers.term_weights()
        self.temperature = self.numbers.temperature
        self.regularizer_ramp = 1.0
        if penalty_weights is not None:
            if not (torch.isfinite(penalty_weights) & (penalty_weights >= 0)).all():
                raise ValueError("penalty_weights must be finite and >= 0 for every term of the vocabulary")
            penalty_weights = penalty_weights.float()
        # The weights are derived from a corpus: they follow the loss to its device and stay out of its state.
        self.register_buffer("penalty_weights", penalty_weights, persistent=False)
        self.special_token_ids = tuple(special_token_ids)
        self.gather_across_devices = gather_across_devices
        self.metrics: dict[str, Tensor] = {}

    def compute_loss(
        self, embeddings: list[Tensor], features: list[Features] | None, labels: Tensor | None
    ) -> dict[str, Tensor]:
        """Compute the weighted parts; see `EmbeddingLoss.forward`.

        Args:
            embeddings: One `[B, V]` float tensor >= 0 per column: anchors, positives, negatives.
            features: One dict per column with `input_ids`, `attention_mask` and, for distillation,
                `teacher_embedding`; None where only embeddings are at hand.
            labels: `[B, 1 + n]` float scores of the teacher, or None.

        Returns:
            Term name -> 0-dim float; their sum is the loss.

        Raises:
            ValueError: If a term lacks the columns, tokens, labels or teacher embeddings that it needs.
        """
        if len(embeddings) < 2:
            raise ValueError(
                "NeuralSparseLoss needs the columns (anchor, positive, negative_1, ...); received "
                f"{len(embeddings)} column"
            )
        weights, numbers = self.weights, self.numbers
        anchor, positive, *negatives = embeddings  # [B, V] each
        documents = torch.cat(embeddings[1:])  # [(1 + n) * B, V]
        parts: dict[str, Tensor] = {}

        # The scores of each anchor against every candidate serve InfoNCE and distillation from embeddings.
        scores = None
        if weights["infonce"] or (weights["distillation"] and labels is None):
            scores = similarity_scores(anchor, self._candidates(embeddings[1:]), self.similarity)  # [B, N]

        if weights["infonce"]:
            assert scores is not None
            first = first_gathered_row(len(anchor)) if self.gather_across_devices else 0
            own = torch.arange(first, first + len(anchor), device=anchor.device)  # [B], each own positive
            parts["infonce"] = ranking_cross_entropy(scores, own, self.temperature)

        if weights["self_reconstruction"]:
            tokens = _tokens(features)
            parts["self_reconstruction"] = _mean(
                [self_reconstruction(rows, *own) for rows, own in zip(embeddings, tokens, strict=True)]
            )

        if weights["positive_activation"]:
            parts["positive_activation"] = positive_activation(
                anchor, *_tokens(features)[1], self.special_token_ids
            )

        if weights["triplet_margin"]:
            if not negatives:
                raise ValueError(
                    "triplet_margin needs a negative column; the data has only (anchor, positive). "
                    "Add negatives, or set triplet_margin_weight=0"
                )
            parts["triplet_margin"] = _mean(
                [triplet_margin(anchor, positive, rows, numbers.margin) for rows in negatives]
            )

        if weights["flops_query"]:
            parts["flops_query"] = self._sparsity(anchor)
        if weights["flops_document"]:
            parts["flops_document"] = self._sparsity(documents)

        if weights["minimum_activation"]:
            parts["minimum_activation"] = _mean(
                [minimum_activation(rows, numbers.top_k, numbers.activation_threshold) for rows in embeddings]
            )

        if weights["distillation"]:
            student, teacher = self._distilled_scores(scores, embeddings, features, labels)
            if self.gather_across_devices:  # The z-scores are taken over the joint batch of all ranks.
                student, teacher = rows_of_all_ranks(student), rows_of_all_ranks(teacher)
            parts["distillation"] = distillation(
                student, teacher, numbers.distillation_temperature, numbers.kl_weight, numbers.mse_weight
            )

        self.metrics = {
            "query_active_dims": _active_dimensions(anchor),
            "document_active_dims": _active_dimensions(documents),
        }
        return {name: weights[name] * part for name, part in parts.items()}

    def _candidates(self, columns: list[Tensor]) -> Tensor:
        """All positives, then all negatives, of all ranks if they are gathered: `[N, V]`."""
        return torch.cat(
            [rows_of_all_ranks(rows) if self.gather_across_devices else rows for rows in columns]
        )

    def _sparsity(self, rows: Tensor) -> Tensor:
        """FLOPS of the mean activation over all ranks; `rows` is `[B, V]`.

        The penalty is not linear, so the mean of the ranks' own penalties would be another number.
        """
        if world_size() > 1:
            count = sum_over_ranks(rows.new_full((), len(rows)))
            rows = (sum_over_ranks(rows.sum(dim=0)) / count).unsqueeze(0)  # [1, V]
        if self.penalty_weights is None:
            return self.regularizer_ramp * flops(rows)
        above_one = (self.penalty_weights - 1).clamp_min(0)
        penalties = self.penalty_weights - (1 - self.regularizer_ramp) * above_one
        return self.regularizer_ramp * idf_flops(rows, penalties, self.numbers.l2_ratio)

    def _distilled_scores(
        self,
        scores: Tensor | None,
        columns: list[Tensor],
        features: list[Features] | None,
        labels: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The student's and the teacher's scores of the same pairs: `[B, N]` each, or `[B, 1 + n]` each."""
        anchor, *documents = columns
        embeddings = [
            column[TEACHER_KEY].to(anchor.dtype) for column in features or () if TEACHER_KEY in column
        ]
        if (labels is None) == (not embeddings):
            raise ValueError(
                "distillation needs either a label column with precomputed teacher scores or the teacher's "
                f"embedding of every column ({TEACHER_KEY!r} beside its tokens); received "
                + ("neither; add one, or set distillation_weight=0" if labels is None else "both")
            )
        if labels is None:
            if len(embeddings) != len(columns):
                raise ValueError(
                    f"distillation needs {TEACHER_KEY!r} beside the tokens of every column; received it for "
                    f"{len(embeddings)} of {len(columns)} columns"
                )
            assert scores is not None
            return scores, similarity_scores(embeddings[0], self._candidates(embeddings[1:]), "cosine")
        expected = (len(anchor), len(documents))
        if labels.shape != expected or expected[1] < 2:
            raise ValueError(
                "labels must hold one teacher score per document column, the positive first, and at least "
                f"one negative: [{expected[0]}, {expected[1]}] for these columns; received "
                f"{list(labels.shape)}"
            )
        own = torch.stack(documents, dim=1)  # [B, 1 + n, V]
        return paired_scores(anchor, own, self.similarity), labels.to(anchor.dtype)

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings, for the model card."""
        return asdict(self.numbers) | {
            "similarity": self.similarity,
            "idf_aware_flops": self.penalty_weights is not None,
            "gather_across_devices": self.gather_across_devices,
        }

    @property
    def citation(self) -> str:
        """The paper whose architecture and sparsity term the loss builds on, for the model card."""
        return """
@misc{formal2021splade,
    title={SPLADE v2: Sparse Lexical and Expansion Model for Information Retrieval},
    author={Formal, Thibault and Lassance, Carlos and Piwowarski, Benjamin and Clinchant, St{\\'e}phane},
    year={2021},
    eprint={2109.10086},
    archivePrefix={arXiv}
}
"""


def _tokens(features: list[Features] | None) -> list[tuple[Tensor, Tensor]]:
    """Token ids and attention mask of each column, `[B, L]` each."""
    if features is None:
        raise ValueError(
            "self_reconstruction and positive_activation read the tokens of each column, which "
            "compute_loss_from_embeddings does not receive; set their weights to 0, or call the loss itself"
        )
    return [(column["input_ids"], column["attention_mask"]) for column in features]


def _active_dimensions(rows: Tensor) -> Tensor:
    """Mean number of positive entries per row of `[B, V]`."""
    return (rows.detach() > 0).sum(dim=1).float().mean()


def _mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean()
