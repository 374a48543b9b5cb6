"""The dense and the sparse vectors of BGE-M3, trained together from one forward pass (docs/bge-m3.md)."""

from __future__ import annotations

import math
from typing import Any

import torch
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn

from lexforge.losses.base import Features
from lexforge.losses.infonce import ranking_cross_entropy
from lexforge.losses.neural_sparse import NeuralSparseLoss
from lexforge.losses.similarity import scores_of_columns
from lexforge.models import TokenWeights
from lexforge.settings import check_positive


class DenseAndSparseLoss(NeuralSparseLoss):
    """`NeuralSparseLoss` of the sparse vectors, and beside it InfoNCE of the dense ones by cosine.

    The dense vector of a text is the state of its first token, as in BGE-M3. Both kinds of vectors come from
    one forward pass, have the same candidates, and leave out the same false negatives.

    Args:
        model: An encoder of a `Transformer` and `lexforge.models.TokenWeights`, wrapped or not.
        dense_weight: Weight of the part `dense`, >= 0.
        dense_temperature: Temperature of its InfoNCE, above 0; FlagEmbedding trains BGE-M3 with .02.
        **options: Arguments of `NeuralSparseLoss`, but for `mini_batch_size`, which must be None.

    Raises:
        ValueError: If a number is out of range, `mini_batch_size` is given, or the encoder has another head.

    Source: Chen et al. 2024 (arXiv 2402.03216), equation 1 for each kind of vectors; without its vectors per
    token, its loss of the summed scores and its self-distillation.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        dense_weight: float = 1.0,
        dense_temperature: float = 0.02,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        check_positive(dense_temperature=dense_temperature)
        if not 0 <= dense_weight < math.inf:
            raise ValueError(f"dense_weight must be finite and >= 0; received {dense_weight}")
        if self.mini_batch_size is not None:
            raise ValueError(
                "DenseAndSparseLoss encodes a batch at once: mini_batch_size must be None; received "
                f"{self.mini_batch_size!r}"
            )
        heads = [module for module in model.modules() if isinstance(module, TokenWeights)]
        if len(heads) != 1:
            raise ValueError(
                "DenseAndSparseLoss needs an encoder with one head of BGE-M3 (TokenWeights), as build_splade "
                f"builds it from a folder with sparse_linear.pt; received one with {len(heads)}"
            )
        self.width = heads[0].in_features
        self.weights["dense"] = dense_weight
        self.dense_temperature = dense_temperature

    def embed(self, inputs: list[Features]) -> list[Tensor]:
        """Encode the columns: the sparse vectors and behind them the dense ones, `[B, V + D]` per column."""
        rows = []
        for column in inputs:
            features = self.model(dict(column))
            sparse = features["sentence_embedding"]  # [B, V]
            dense = Pooling(self.width, pooling_mode="cls")(dict(features))["sentence_embedding"]  # [B, D]
            rows.append(torch.cat([sparse, dense], dim=1))
        return rows

    def compute_loss(
        self, embeddings: list[Tensor], features: list[Features] | None, labels: Tensor | None
    ) -> dict[str, Tensor]:
        """Compute the weighted parts of `NeuralSparseLoss`, and the part `dense`.

        Args:
            embeddings: One `[B, V + D]` float tensor per column, as `embed` makes them.
            features: One dict per column, as for `NeuralSparseLoss`.
            labels: As for `NeuralSparseLoss`.

        Returns:
            Term name -> 0-dim float; their sum is the loss.

        Raises:
            ValueError: If another loss has encoded the columns, which have no dense vectors then.
        """
        if features is None:
            raise ValueError(
                "DenseAndSparseLoss encodes the columns itself, because other losses encode only the sparse "
                "vectors; pass it to the trainer directly"
            )
        sparse = [rows[:, : -self.width] for rows in embeddings]
        dense = [rows[:, -self.width :] for rows in embeddings]
        parts = super().compute_loss(sparse, features, labels)
        if not self.weights["dense"]:
            return parts
        anchor, *documents = dense
        scores = scores_of_columns(anchor, [self._compared(rows) for rows in documents], "cosine")  # [B, N]
        target = self._own_columns(anchor, len(documents))[:, 0]
        parts["dense"] = self.weights["dense"] * ranking_cross_entropy(
            scores, target, self.dense_temperature, self.no_negatives
        )
        return parts

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings, for the model card."""
        own = {"dense_weight": self.weights["dense"], "dense_temperature": self.dense_temperature}
        return super().get_config_dict() | own
