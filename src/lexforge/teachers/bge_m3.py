"""The three scores of BGE-M3 as one teacher of pairs: dense, sparse, and of several vectors per text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lexforge.common.types import DataError, TextKind
from lexforge.teachers.scorers import ApartScorer, Pair

if TYPE_CHECKING:
    from sentence_transformers import SparseEncoder
    from torch import Tensor

ScoreWeights = tuple[float, float, float]
"""Weights of the dense score, the sparse score, and that of several vectors."""


class BGEM3Scorer(ApartScorer):
    """Scores pairs by the weighted mean of BGE-M3's three scores.

    The dense score is the cosine of the first tokens' states, the sparse one the dot product of the term
    weights. The third is the mean over the tokens of the query, without the first, of the largest cosine with
    a token of the document. Scores and mean are those of FlagEmbedding's `compute_score` for single pairs.

    Args:
        model: An encoder of a `Transformer` and `TokenWeights`.
        weights: Weights of the dense, the sparse and the several vectors, >= 0 and not all 0; (0, 1, 0) is
            the sparse score alone.
        batch_size: The number of texts per forward pass.

    Raises:
        DataError: If the model has another head, or the weights are out of range.

    Source: Chen et al. 2024, "M3-Embedding" (arXiv 2402.03216), section 3.2.
    """

    def __init__(self, model: SparseEncoder, weights: ScoreWeights, batch_size: int = 32) -> None:
        from lexforge.models import TokenWeights
        from lexforge.models.fingerprint import fingerprint

        head = next((module for module in model.modules() if isinstance(module, TokenWeights)), None)
        if head is None:
            raise DataError(
                "weights of three scores need the three heads of BGE-M3 (sparse_linear.pt and "
                "colbert_linear.pt beside the encoder); received a model without them"
            )
        if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
            raise DataError(f"the weights of three scores must be >= 0 and not all 0; received {weights}")
        super().__init__()
        self._model, self._head, self._batch_size = model.eval(), head, batch_size
        self._weights = np.array(weights, dtype=np.float64) / sum(weights)
        self.name = "-".join([fingerprint(model), *(f"{weight:.6g}" for weight in self._weights)])

    def score(self, pairs: Sequence[Pair]) -> NDArray[np.floating]:
        """Score N pairs: `[N]` float32."""
        queries = self._encoded_queries(pairs)
        rows: dict[str, list[int]] = {}  # document -> its pairs
        for row, (_, document) in enumerate(pairs):
            rows.setdefault(document, []).append(row)
        scores = np.zeros(len(pairs), dtype=np.float32)
        # One batch of documents at a time: the vectors of all tokens of many would fill the memory.
        for document, encoded in zip(rows, self._encode(list(rows), "document"), strict=True):
            for row in rows[document]:
                scores[row] = self._weights @ _three_scores(queries[row], encoded)
        return scores

    def _encode(self, texts: list[str], kind: TextKind) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Dense `[D]`, sparse `[V]` in COO, and several `[L, C]` vectors of each text, on the CPU."""
        import torch
        import torch.nn.functional as F
        from sentence_transformers.util import batch_to_device

        from lexforge.models.prompts import saved_prompt

        model: Any = self._model
        prompt = saved_prompt(self._model, kind)
        for start in range(0, len(texts), self._batch_size):
            batch = texts[start : start + self._batch_size]
            features = batch_to_device(model.preprocess(batch, prompt=prompt, task=kind), model.device)
            with torch.inference_mode():
                encoded = model(features)
                states = encoded["token_embeddings"]  # [B, L, D]
                kept = encoded["attention_mask"].bool()  # [B, L]
                dense = F.normalize(states[:, 0], dim=-1).float().cpu()
                several = F.normalize(self._head.colbert_linear(states), dim=-1).float().cpu()
                sparse = encoded["sentence_embedding"].float().cpu()
            for i, row in enumerate(kept.cpu()):
                yield dense[i], sparse[i].to_sparse(), several[i, 1:][row[1:]]


def _three_scores(
    query: tuple[Tensor, Tensor, Tensor], document: tuple[Tensor, Tensor, Tensor]
) -> NDArray[np.float64]:
    """The dense score, the sparse one, and that of several vectors, `[3]`."""
    dense = float(query[0] @ document[0])
    sparse = float((query[1] * document[1]).sum())
    several = query[2] @ document[2].T  # [tokens of the query, tokens of the document]
    late = float(several.amax(dim=1).mean()) if several.numel() else 0.0
    return np.array([dense, sparse, late])
