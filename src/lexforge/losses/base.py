"""What every plug-in loss shares: encode the columns, then hand their embeddings to the loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sentence_transformers.base.losses.merged_forward import embed_columns
from torch import Tensor, nn

Features = dict[str, Any]
# The collator puts teacher embeddings beside the tokens of a column under this name; the encoder never sees
# them.
TEACHER_KEY = "teacher_embedding"


class EmbeddingLoss(nn.Module):
    """A loss on the embeddings of the text columns, as the trainers of sentence-transformers call it.

    A subclass implements `compute_loss(embeddings, features, labels)`. The model is kept as `self.model`, the
    one name the Trainer looks for when it swaps in the wrapped (DistributedDataParallel, compiled) model.

    Args:
        model: The `SparseEncoder` or `SentenceTransformer` to train.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, sentence_features: Iterable[Features], labels: Tensor | None = None
    ) -> Tensor | dict[str, Tensor]:
        """Encode each column and compute the loss.

        Args:
            sentence_features: One dict a text column, as the data collator makes them: `input_ids [B, L]`,
                `attention_mask [B, L]` and what else the model or the loss reads.
            labels: `[B]` or `[B, C]`, or None.

        Returns:
            A 0-dim tensor, or a dict of named, already weighted 0-dim parts that sum to the loss.
        """
        features = list(sentence_features)
        inputs = [{key: value for key, value in column.items() if key != TEACHER_KEY} for column in features]
        return self.compute_loss(embed_columns(self.model, inputs), features, labels)

    def compute_loss_from_embeddings(
        self, embeddings: list[Tensor], labels: Tensor | None = None
    ) -> Tensor | dict[str, Tensor]:
        """Compute the loss where another loss (`SpladeLoss`, `CachedSpladeLoss`) has encoded the columns.

        Args:
            embeddings: One `[B, D]` float tensor a column.
            labels: `[B]` or `[B, C]`, or None.

        Returns:
            As `forward`.

        Raises:
            ValueError: If the loss needs more of a column than its embedding.
        """
        return self.compute_loss(embeddings, None, labels)

    def compute_loss(
        self, embeddings: list[Tensor], features: list[Features] | None, labels: Tensor | None
    ) -> Tensor | dict[str, Tensor]:
        """The loss itself; see `forward`. `features` is None where only embeddings are at hand."""
        raise NotImplementedError(f"{type(self).__name__} must implement compute_loss")
