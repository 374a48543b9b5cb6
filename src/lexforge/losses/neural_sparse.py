"""The weighted sum of terms that trains a neural sparse retriever."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from lexforge.common.ranks import sum_over_ranks, world_size
from lexforge.common.similarity import Similarity, agreed_similarity, check_similarity
from lexforge.losses.base import TEACHER_KEY, EmbeddingLoss, Features
from lexforge.losses.distillation import distillation, margin_mse
from lexforge.losses.false_negatives import BatchTexts, share_left_out
from lexforge.losses.flops import flops, idf_flops
from lexforge.losses.gradient_cache import MiniBatchSize
from lexforge.losses.infonce import ranking_cross_entropy
from lexforge.losses.minimum_activation import minimum_activation
from lexforge.losses.own_activation import own_activation
from lexforge.losses.positive_activation import positive_activation
from lexforge.losses.self_reconstruction import self_reconstruction
from lexforge.losses.similarity import paired_scores, scores_of_columns
from lexforge.losses.triplet import triplet_margin
from lexforge.models.fused import padded
from lexforge.settings import SparseLossNumbers


class NeuralSparseLoss(EmbeddingLoss):
    """Weighted sum of InfoNCE, self-reconstruction, positive activation, own activation, triplet margin,
    FLOPS, minimum activation, distillation and MarginMSE, returned as named parts.

    The columns are `(anchor, positive, negative_1, ..., negative_n)`. Queries and documents (positives and
    negatives together) are regularised apart, each by its own mean activation over all ranks.
    Self-reconstruction, own activation and minimum activation are means over the columns. With
    `regularized="anchor"` these four act on the anchors alone. A term of weight 0 is not computed.
    All terms are computed in float32 (float64 for a float64 model), outside autocast.

    Candidates that are known to answer an anchor are left out of InfoNCE, the triplet margin, distillation
    and MarginMSE. Equal texts count once in the batch, and once in the row where a row is compared by itself
    (docs/losses.md, section 15).

    Distillation and MarginMSE need one of two things. Either every column carries the teacher's embeddings
    beside its tokens (key `teacher_embedding`, which `lexforge.training.SpladeCollator` adds); then their
    similarity is the teacher's score of every candidate of the batch. Or a label column holds
    precomputed scores of `(positive, negative_1, ..., negative_n)`, which are compared within each row.

    Weights, temperature and ramp are plain attributes that each call reads, so that a curriculum can write
    them.

    Args:
        model: The `SparseEncoder` to train.
        similarity: "cosine" or "dot", which must be the model's `similarity_fn_name`; None takes that.
        penalty_weights: `[V]` float, >= 0, from `idf_penalty_weights`; None is the plain FLOPS of SPLADE.
        special_token_ids: Ids that positive activation leaves out.
        word_weights: `[V]` float, >= 0, from `word_weights`; own activation needs it.
        gather_across_devices: Score against the documents of all ranks; see `EmbeddingLoss`.
        mini_batch_size: Rows that are encoded at once, "auto" or None; see `EmbeddingLoss`.
        teacher_similarity: How the teacher's embeddings are compared, by "cosine" or "dot".
        **numbers: Weights, temperatures and thresholds as plain keyword arguments, such as
            `flops_weight=0.003`; `SparseLossNumbers` lists their names, defaults and meaning.

    Attributes:
        numbers: The numbers that were given.
        weights: Term name -> weight in force.
        temperature: Temperature of InfoNCE in force.
        regularizer_ramp: Share r in [0, 1] of the sparsity weights in force. Penalties above 1 (special
            tokens, stop words) grow with it too: w becomes min(w, 1) + r * max(w - 1, 0).
        sparsity_factors: "flops_query" or "flops_document" -> 0-dim float tensor that multiplies that term
            beside its weight; empty at first. A controller writes them (`lexforge.sparsity.controller`).
        metrics: Detached 0-dim values of the last call that are logged and not trained on: `terms/query` and
            `terms/document`, mean numbers of active terms, and `candidates/left_out`, the share of negatives
            left out.
        no_negatives: `[B, N]` bool, the candidates that the last call left out of InfoNCE; None where nothing
            was known of them.

    Raises:
        ValueError: If a number is out of range, a similarity is unknown or not the model's, or a batch lacks
            the columns, labels or teacher embeddings that a term needs.
        TypeError: If a number has an unknown name.

    Source: docs/losses.md, sections 1 to 8.
    """

    similarity: Similarity
    once_per_batch = True
    card_settings = ("similarity", "gather_across_devices", "teacher_similarity")
    penalty_weights: Tensor | None
    special_token_ids: Tensor
    word_weights: Tensor | None
    no_negatives: Tensor | None = None

    def __init__(
        self,
        model: nn.Module,
        *,
        similarity: Similarity | None = None,
        penalty_weights: Tensor | None = None,
        special_token_ids: Sequence[int] = (),
        word_weights: Tensor | None = None,
        gather_across_devices: bool = False,
        mini_batch_size: MiniBatchSize = None,
        teacher_similarity: Similarity = "cosine",
        **numbers: Any,
    ) -> None:
        super().__init__(model, mini_batch_size, gather_across_devices)
        self.similarity = agreed_similarity(model, similarity, loss="NeuralSparseLoss")
        self.numbers = SparseLossNumbers(**numbers)
        self.weights = self.numbers.term_weights()
        self.temperature = self.numbers.temperature
        self.regularizer_ramp = 1.0
        self.sparsity_factors: dict[str, Tensor] = {}
        # These weights are derived from a corpus: they follow the loss to its device, not into its state.
        for name, given in (("penalty_weights", penalty_weights), ("word_weights", word_weights)):
            if given is not None and not (torch.isfinite(given) & (given >= 0)).all():
                raise ValueError(f"{name} must be finite and >= 0 for every term of the vocabulary")
            self.register_buffer(name, None if given is None else given.float(), persistent=False)
        special = torch.tensor(list(special_token_ids), dtype=torch.long)
        self.register_buffer("special_token_ids", special, persistent=False)
        if self.weights["own_activation"] and word_weights is None:
            raise ValueError(
                "own activation weighs the tokens of a text: pass word_weights, such as word_weights(idf), "
                "or set own_activation_weight=0"
            )
        self.teacher_similarity = check_similarity(teacher_similarity)

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
        documents = embeddings[1:]  # never joined in memory: a copy would be [(1 + n) * B, V]
        regularized = embeddings if numbers.regularized == "all" else [anchor]
        own = self._own_columns(anchor, len(embeddings) - 1)  # [B, 1 + n], each row's documents among all N
        parts: dict[str, Tensor] = {}

        # Candidates that are known to answer an anchor, and repeated ones, are left out of what follows. What
        # repeats depends on the candidates: all those of the batch, or each row's own documents.
        texts = BatchTexts.of(features, self.gather_across_devices)
        left_out = self.no_negatives = None if texts is None else texts.left_out()  # [B, N] bool
        within_rows = None if texts is None else texts.left_out_within_rows(own)  # [B, 1 + n] bool

        # The teacher's scores: of all candidates [B, N], or of each row's own documents [B, 1 + n].
        teacher = None
        if weights["distillation"] or weights["margin_mse"]:
            teacher = self._teacher_scores(embeddings, features, labels)
        listed = teacher is not None and labels is not None

        # The scores of each anchor against every candidate serve InfoNCE and a teacher of all candidates.
        scores = None
        if weights["infonce"] or (teacher is not None and not listed):
            candidates = [self._compared(rows) for rows in documents]
            scores = scores_of_columns(anchor, candidates, self.similarity)  # [B, N]

        if weights["infonce"]:
            assert scores is not None
            parts["infonce"] = ranking_cross_entropy(scores, own[:, 0], self.temperature, left_out)

        if weights["self_reconstruction"]:
            parts["self_reconstruction"] = _mean(
                self_reconstruction(rows, *words)
                for rows, words in zip(regularized, _tokens(features), strict=False)
            )

        if weights["positive_activation"]:
            parts["positive_activation"] = positive_activation(
                anchor, *_tokens(features)[1], self.special_token_ids
            )

        if weights["own_activation"]:
            assert self.word_weights is not None
            parts["own_activation"] = _mean(
                own_activation(rows, *words, self.word_weights)
                for rows, words in zip(regularized, _tokens(features), strict=False)
            )

        if weights["triplet_margin"]:
            if not negatives:
                raise ValueError(
                    "triplet_margin needs a negative column; the data has only (anchor, positive). "
                    "Add negatives, or set triplet_margin_weight=0"
                )
            parts["triplet_margin"] = _mean(
                triplet_margin(
                    anchor,
                    positive,
                    rows,
                    numbers.margin,
                    left_out=None if within_rows is None else within_rows[:, place],
                )
                for place, rows in enumerate(negatives, start=1)
            )

        if weights["flops_query"]:
            parts["flops_query"] = self._sparsity([anchor])
        if weights["flops_document"] and numbers.regularized == "all":
            parts["flops_document"] = self._sparsity(documents)

        if weights["minimum_activation"]:
            parts["minimum_activation"] = _mean(
                minimum_activation(rows, numbers.top_k, numbers.activation_threshold) for rows in regularized
            )

        if teacher is not None:
            if listed:  # [B, 1 + n], the positive in column 0
                student = paired_scores(anchor, documents, self.similarity)
                target, skipped = torch.zeros_like(own[:, 0]), within_rows
            else:  # [B, N]
                assert scores is not None
                student, target, skipped = scores, own[:, 0], left_out
            parts |= self._taught(student, teacher, target, skipped)

        self.metrics = {
            "terms/query": _active_dimensions([anchor]),
            "terms/document": _active_dimensions(documents),
            **share_left_out(left_out),
        }
        # A factor is a tensor of its own: a weight on the device would make each `if` above wait for it.
        for name in self.sparsity_factors.keys() & parts.keys():
            parts[name] = self.sparsity_factors[name] * parts[name]
        return {name: weights[name] * part for name, part in parts.items()}

    def _own_columns(self, anchor: Tensor, documents: int) -> Tensor:
        """The places of each row's documents among all candidates, `[B, 1 + n]`; the positive is first."""
        rows = len(anchor) * (world_size() if self.gather_across_devices else 1)  # of all ranks
        column = torch.arange(documents, device=anchor.device) * rows  # [1 + n]
        return self._own_places(anchor)[:, None] + column

    def _sparsity(self, columns: list[Tensor]) -> Tensor:
        """FLOPS of the mean activation of columns `[B, V]` over all ranks.

        The penalty is not linear, so the mean of the ranks' own penalties would be another number.
        """
        total = sum_over_ranks(torch.stack([rows.sum(dim=0) for rows in columns]).sum(dim=0))  # [V]
        count = sum_over_ranks(total.new_full((), sum(len(rows) for rows in columns)))
        rows = (total / count.clamp_min(1)).unsqueeze(0)  # [1, V]
        if self.penalty_weights is None:
            return self.regularizer_ramp * flops(rows)
        above_one = (self.penalty_weights - 1).clamp_min(0)
        penalties = self.penalty_weights - (1 - self.regularizer_ramp) * above_one
        return self.regularizer_ramp * idf_flops(rows, penalties, self.numbers.l2_ratio)

    def _teacher_scores(
        self, columns: list[Tensor], features: list[Features] | None, labels: Tensor | None
    ) -> Tensor:
        """The teacher's scores of all candidates, `[B, N]`, or those of the labels, `[B, 1 + n]`."""
        anchor, *documents = columns
        embeddings = [
            column[TEACHER_KEY].to(anchor.dtype) for column in features or () if TEACHER_KEY in column
        ]
        if (labels is None) == (not embeddings):
            raise ValueError(
                "distillation and margin_mse need either a label column with given scores "
                f"or the teacher's embedding of every column ({TEACHER_KEY!r} beside its tokens); received "
                + ("neither; add one, or switch them off" if labels is None else "both")
            )
        if labels is None:
            if len(embeddings) != len(columns):
                raise ValueError(
                    f"a teacher needs {TEACHER_KEY!r} beside the tokens of every column; received it for "
                    f"{len(embeddings)} of {len(columns)} columns"
                )
            candidates = [self._compared(rows) for rows in embeddings[1:]]
            return scores_of_columns(embeddings[0], candidates, self.teacher_similarity)
        expected = (len(anchor), len(documents))
        if labels.shape != expected:
            raise ValueError(
                "labels must hold one teacher score per document column, the positive first: "
                f"[{expected[0]}, {expected[1]}] for these columns; received {list(labels.shape)}"
            )
        if expected[1] < 2:
            raise ValueError(
                "labels must hold one teacher score per document column, of which one at least is a "
                "negative; received the score of the positive alone, which nothing can be compared with"
            )
        return labels.to(anchor.dtype)

    def _taught(
        self, student: Tensor, teacher: Tensor, positive: Tensor, left_out: Tensor | None
    ) -> dict[str, Tensor]:
        """The terms that compare the scores of student and teacher, `[B, N]` each.

        Args:
            student: The scores of the model.
            teacher: Those of the teacher.
            positive: `[B]` int64, the column of each row's positive.
            left_out: `[B, N]` bool, True where a score is not compared; None compares all.
        """
        # Spreads, z-scores and counts are those of the joint batch of all ranks.
        student, teacher, positive = (self._compared(rows) for rows in (student, teacher, positive))
        left_out = None if left_out is None else self._compared(left_out)
        numbers, parts = self.numbers, dict[str, Tensor]()
        if self.weights["distillation"]:
            parts["distillation"] = distillation(
                student,
                teacher,
                numbers.distillation_temperature,
                numbers.kl_weight,
                numbers.mse_weight,
                match_scale=self.similarity == "dot",  # A dot product has a scale of its own.
                left_out=left_out,
            )
        if self.weights["margin_mse"]:
            parts["margin_mse"] = margin_mse(student, teacher, positive=positive, left_out=left_out)
        return parts

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings, for the model card."""
        own = {"idf_aware_flops": self.penalty_weights is not None}
        return asdict(self.numbers) | super().get_config_dict() | own

    # The paper whose architecture and sparsity term the loss builds on, for the model card.
    citation = """
@misc{formal2021splade,
    title={SPLADE v2: Sparse Lexical and Expansion Model for Information Retrieval},
    author={Formal, Thibault and Lassance, Carlos and Piwowarski, Benjamin and Clinchant, St{\\'e}phane},
    year={2021},
    eprint={2109.10086},
    archivePrefix={arXiv}
}
"""


def _tokens(features: list[Features] | None) -> list[tuple[Tensor, Tensor]]:
    """Token ids and mask of each column, `[B, L]` each; the tokens of a saved prompt are masked too."""
    if features is None:
        raise ValueError(
            "self_reconstruction, positive_activation and own_activation read the tokens of each column, "
            "which compute_loss_from_embeddings does not receive; set their weights to 0, or call the loss "
            "itself"
        )
    return [_tokens_without_prompt(column) for column in features]


def _tokens_without_prompt(column: Features) -> tuple[Tensor, Tensor]:
    """Token ids and mask `[B, L]`, 0 also at the first tokens, which are the same prompt in every row."""
    ids, mask = padded(column, "input_ids")
    if "prompt_length" not in column:
        return ids, mask
    length = column["prompt_length"]  # a number, or one for each row, all equal
    if isinstance(length, Tensor):
        length = length.flatten()[0]
    # Counted over unmasked tokens, because a tokenizer may pad on the left.
    return ids, mask * (mask.cumsum(dim=1) > length)


def _active_dimensions(columns: list[Tensor]) -> Tensor:
    """Mean number of positive entries per row of columns `[B, V]`."""
    return torch.cat([(rows.detach() > 0).sum(dim=1) for rows in columns]).float().mean()


def _mean(values: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean()
