"""The seven-term loss of the V26 neural sparse trainer as one weighted sum (seed 003)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from lexforge.common.ranks import first_gathered_row, rows_of_all_ranks, sum_over_ranks, world_size
from lexforge.common.similarity import Similarity, check_similarity, similarity_of
from lexforge.losses.base import TEACHER_KEY, EmbeddingLoss, Features
from lexforge.losses.distillation import distillation
from lexforge.losses.flops import flops, idf_flops
from lexforge.losses.infonce import check_temperature, ranking_cross_entropy
from lexforge.losses.minimum_activation import minimum_activation
from lexforge.losses.positive_activation import positive_activation
from lexforge.losses.self_reconstruction import self_reconstruction
from lexforge.losses.similarity import similarity_scores
from lexforge.losses.triplet import triplet_margin


class NeuralSparseLoss(EmbeddingLoss):
    """Weighted sum of InfoNCE, self-reconstruction, positive activation, triplet margin, FLOPS, minimum
    activation and distillation, returned as named parts.

    Columns are `(anchor, positive, negative_1, ..., negative_n)`. Queries and documents (positives and
    negatives together) are regularised apart, each by its own mean activation over all ranks;
    self-reconstruction and minimum activation are means over the columns. A term of weight 0 is not computed.
    All terms are computed in float32 (float64 for a float64 model), outside autocast.

    Distillation needs one of two things: the teacher's embeddings of every column beside its tokens (key
    `teacher_embedding`, which `lexforge.training.SpladeCollator` adds), scored against all candidates of the
    batch by cosine; or a label column with precomputed scores of `(positive, negative_1, ..., negative_n)`,
    which are compared within each row.

    Weights, temperature and ramp are plain attributes, read at each call, so that a curriculum can write
    them.

    Args:
        model: The `SparseEncoder` to train.
        similarity: "cosine" or "dot"; None takes the model's own `similarity_fn_name`.
        temperature: Divides the scores in InfoNCE, > 0.
        infonce_weight: Weight of InfoNCE (section 1).
        self_reconstruction_weight: Weight of self-reconstruction (section 2).
        positive_activation_weight: Weight of positive activation (section 3).
        triplet_margin_weight: Weight of the triplet margin (section 4), averaged over the negative columns.
        flops_weight: Weight of the sparsity term (section 5) of the documents.
        query_flops_weight: The same for queries; None takes `flops_weight`.
        minimum_activation_weight: Weight of minimum activation (section 6).
        distillation_weight: Weight of distillation (section 7).
        penalty_weights: `[V]` float, >= 0, from `idf_penalty_weights`; None is the plain FLOPS of SPLADE.
        l2_ratio: beta of the IDF-aware form; not used where `penalty_weights` is None.
        margin: Margin of the triplet term.
        top_k: Number of terms of the minimum activation.
        activation_threshold: Floor of the minimum activation.
        distillation_temperature: Temperature of the KL part.
        kl_weight: Weight of the KL part within distillation.
        mse_weight: Weight of the z-score part within distillation.
        special_token_ids: Ids that positive activation leaves out.
        gather_across_devices: Score against the documents of all ranks, with gradient, so that R ranks of B
            rows train like one of R * B.

    Attributes:
        weights: Term name -> weight.
        regularizer_ramp: Share r in [0, 1] of the sparsity weights in force. Penalties above 1 (special
            tokens, stop words) grow with it too: w becomes min(w, 1) + r * max(w - 1, 0).
        metrics: Detached 0-dim values of the last call that are logged and not trained on.

    Raises:
        ValueError: At construction for a wrong number or a similarity other than the model's; at the first
            call for columns, labels or teacher embeddings that a term needs and does not get.

    Source: seed 003, sections 1 to 8.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        similarity: Similarity | None = None,
        temperature: float = 0.07,
        infonce_weight: float = 3.0,
        self_reconstruction_weight: float = 0.5,
        positive_activation_weight: float = 2.0,
        triplet_margin_weight: float = 0.0,
        flops_weight: float = 0.010,
        query_flops_weight: float | None = None,
        minimum_activation_weight: float = 1.0,
        distillation_weight: float = 2.0,
        penalty_weights: Tensor | None = None,
        l2_ratio: float = 0.3,
        margin: float = 0.3,
        top_k: int = 5,
        activation_threshold: float = 0.5,
        distillation_temperature: float = 3.0,
        kl_weight: float = 0.7,
        mse_weight: float = 0.3,
        special_token_ids: Sequence[int] = (),
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(model)
        self.similarity = _agreed_similarity(model, similarity)
        self.weights = {
            "infonce": infonce_weight,
            "self_reconstruction": self_reconstruction_weight,
            "positive_activation": positive_activation_weight,
            "triplet_margin": triplet_margin_weight,
            "flops_query": flops_weight if query_flops_weight is None else query_flops_weight,
            "flops_document": flops_weight,
            "minimum_activation": minimum_activation_weight,
            "distillation": distillation_weight,
        }
        for name, weight in self.weights.items():
            if not 0 <= weight < float("inf"):
                raise ValueError(f"the weight of {name} must be finite and >= 0; received {weight}")
        if not any(self.weights.values()):
            raise ValueError("at least one weight must be above 0; received 0 for every term")
        check_temperature(temperature)
        check_temperature(distillation_temperature)
        for name, value in (("l2_ratio", l2_ratio), ("margin", margin)):
            if not value >= 0:
                raise ValueError(f"{name} must be >= 0; received {value}")
        if (
            penalty_weights is not None
            and not (torch.isfinite(penalty_weights) & (penalty_weights >= 0)).all()
        ):
            raise ValueError("penalty_weights must be finite and >= 0 for every term")
        self.register_buffer(
            "penalty_weights", None if penalty_weights is None else penalty_weights.float(), persistent=False
        )
        self.temperature = temperature
        self.l2_ratio = l2_ratio
        self.margin = margin
        self.top_k = top_k
        self.activation_threshold = activation_threshold
        self.distillation_temperature = distillation_temperature
        self.kl_weight = kl_weight
        self.mse_weight = mse_weight
        self.special_token_ids = tuple(special_token_ids)
        self.gather_across_devices = gather_across_devices
        self.regularizer_ramp = 1.0
        self.metrics: dict[str, Tensor] = {}

    penalty_weights: Tensor | None

    def compute_loss(
        self, embeddings: list[Tensor], features: list[Features] | None, labels: Tensor | None
    ) -> dict[str, Tensor]:
        """Compute the weighted parts; see `EmbeddingLoss.forward`.

        Args:
            embeddings: `[B, V]` float >= 0 a column: anchors, positives, negatives.
            features: One dict a column with `input_ids`, `attention_mask` and, for distillation,
                `teacher_embedding`.
            labels: `[B, 1 + n]` float scores of the teacher, or None.

        Returns:
            Term name -> 0-dim float, of the precision named above; their sum is the loss.
        """
        if len(embeddings) < 2:
            raise ValueError(
                f"expected columns (anchor, positive, negative_1, ...); received {len(embeddings)} column"
            )
        batch = _Batch(embeddings, features, labels, self)
        parts = {
            name: self.weights[name] * term(batch)
            for name, term in self._terms().items()
            if self.weights[name]
        }
        self.metrics = {
            "query_active_dims": _active_dimensions(batch.anchor),
            "document_active_dims": _active_dimensions(batch.documents),
        }
        return parts

    def _terms(self) -> dict[str, Callable[[_Batch], Tensor]]:
        """Term name -> unweighted term of a batch."""
        return {
            "infonce": lambda batch: ranking_cross_entropy(batch.scores, batch.target, self.temperature),
            "self_reconstruction": lambda batch: _mean(
                [
                    self_reconstruction(rows, *tokens)
                    for rows, tokens in zip(batch.columns, batch.tokens, strict=True)
                ]
            ),
            "positive_activation": lambda batch: positive_activation(
                batch.anchor, *batch.tokens[1], self.special_token_ids
            ),
            "triplet_margin": lambda batch: _mean(
                [triplet_margin(batch.anchor, batch.positive, rows, self.margin) for rows in batch.negatives]
            ),
            "flops_query": lambda batch: self._sparsity(batch.anchor),
            "flops_document": lambda batch: self._sparsity(batch.documents),
            "minimum_activation": lambda batch: _mean(
                [minimum_activation(rows, self.top_k, self.activation_threshold) for rows in batch.columns]
            ),
            "distillation": self._distillation,
        }

    def _sparsity(self, rows: Tensor) -> Tensor:
        """FLOPS of the mean activation over all ranks: the penalty is not linear, so the ranks' own means
        would not do.
        """
        if world_size() > 1:
            count = sum_over_ranks(rows.new_full((), len(rows)))
            rows = (sum_over_ranks(rows.sum(dim=0)) / count).unsqueeze(0)
        if self.penalty_weights is None:
            return self.regularizer_ramp * flops(rows)
        above_one = (self.penalty_weights - 1).clamp_min(0)
        weights = self.penalty_weights - (1 - self.regularizer_ramp) * above_one
        return self.regularizer_ramp * idf_flops(rows, weights, self.l2_ratio)

    def _distillation(self, batch: _Batch) -> Tensor:
        student, teacher = batch.distilled_scores
        if self.gather_across_devices:  # the z-scores are taken over the joint batch
            student, teacher = rows_of_all_ranks(student), rows_of_all_ranks(teacher)
        return distillation(student, teacher, self.distillation_temperature, self.kl_weight, self.mse_weight)


class _Batch:
    """The columns of one call and what the terms read of them, each computed once and only if a term asks."""

    def __init__(
        self,
        columns: list[Tensor],
        features: list[Features] | None,
        labels: Tensor | None,
        loss: NeuralSparseLoss,
    ) -> None:
        self.columns = columns
        self.anchor, self.positive = columns[:2]
        self.documents = torch.cat(columns[1:])
        self.labels = labels
        self._features = features
        self._similarity = loss.similarity
        self._gather = loss.gather_across_devices

    @property
    def negatives(self) -> list[Tensor]:
        if len(self.columns) < 3:
            raise ValueError(
                "triplet_margin needs a negative column; the data has only (anchor, positive). "
                "Add negatives, or set triplet_margin_weight=0"
            )
        return self.columns[2:]

    @property
    def tokens(self) -> list[tuple[Tensor, Tensor]]:
        """Token ids and attention mask of each column."""
        if self._features is None:
            raise ValueError(
                "self_reconstruction and positive_activation read the tokens of each column, which are not "
                "at hand "
                "in compute_loss_from_embeddings; set their weights to 0 or call the loss itself"
            )
        return [(column["input_ids"], column["attention_mask"]) for column in self._features]

    @cached_property
    def scores(self) -> Tensor:
        """Similarity of each anchor to each candidate: all positives, then all negatives, of all ranks if
        gathered.
        """
        return similarity_scores(self.anchor, self._candidates(self.columns[1:]), self._similarity)

    @property
    def target(self) -> Tensor:
        """The column of each anchor's positive in `scores`."""
        first = first_gathered_row(len(self.anchor)) if self._gather else 0
        return torch.arange(first, first + len(self.anchor), device=self.anchor.device)

    @property
    def distilled_scores(self) -> tuple[Tensor, Tensor]:
        """The student's and the teacher's scores of the same pairs, `[B, N]` each."""
        embeddings = [
            column[TEACHER_KEY].to(self.anchor.dtype)
            for column in self._features or ()
            if TEACHER_KEY in column
        ]
        if (self.labels is None) == (not embeddings):
            raise ValueError(
                "distillation needs either a label column with precomputed teacher scores or the teacher's "
                "embedding "
                f"of every column ({TEACHER_KEY!r} beside its tokens); received "
                + ("neither; add one, or set distillation_weight=0" if self.labels is None else "both")
            )
        if self.labels is None:
            if len(embeddings) != len(self.columns):
                raise ValueError(
                    f"{len(embeddings)} of {len(self.columns)} columns carry {TEACHER_KEY!r}; distillation "
                    "needs all"
                )
            return self.scores, similarity_scores(embeddings[0], self._candidates(embeddings[1:]), "cosine")
        expected = (len(self.anchor), len(self.columns) - 1)
        if self.labels.shape != expected or expected[1] < 2:
            raise ValueError(
                "labels must hold one teacher score a document column, the positive first, for at least "
                "one negative: "
                f"[{expected[0]}, {expected[1]}] for these columns; received {list(self.labels.shape)}"
            )
        own = torch.stack(self.columns[1:], dim=1)
        if self._similarity == "cosine":
            own, anchor = (
                torch.nn.functional.normalize(own, dim=-1),
                torch.nn.functional.normalize(self.anchor, dim=-1),
            )
        else:
            anchor = self.anchor
        return torch.einsum("bv,bnv->bn", anchor, own), self.labels.to(self.anchor.dtype)

    def _candidates(self, columns: list[Tensor]) -> Tensor:
        return torch.cat([rows_of_all_ranks(rows) if self._gather else rows for rows in columns])


def _agreed_similarity(model: nn.Module, similarity: Similarity | None) -> Similarity:
    """The one similarity of training and search: what the model's `similarity_fn_name` says."""
    of_model = similarity_of(model)
    if similarity is not None:
        check_similarity(similarity)
        if similarity != of_model:
            raise ValueError(
                f"the loss was given similarity={similarity!r}, but the model searches by {of_model!r}; "
                f"set model.similarity_fn_name = {similarity!r} so that training and search agree"
            )
    return of_model


def _active_dimensions(rows: Tensor) -> Tensor:
    """Mean number of positive entries a row."""
    return (rows.detach() > 0).sum(dim=1).float().mean()


def _mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean()
