"""The graphs that exports trace: one small module for each form of output that a runtime asks for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lexforge.export.models.sides import EncodedSide, EncoderSide, LookupSide


class TermWeights(nn.Module):
    """The vectors of texts, as the encoder gives them.

    Args:
        side: What encodes the texts.
        zeroed_ids: Terms whose weight is set to 0, where a runtime wants that of special tokens.
    """

    def __init__(self, side: EncoderSide, zeroed_ids: Sequence[int] = ()) -> None:
        super().__init__()
        self.max_active_dims = side.max_active_dims
        self.normalized = side.normalized
        self.weights = Lookup(side) if isinstance(side, LookupSide) else Pooled(side)
        kept = torch.ones(side.vocabulary_size)  # [V]
        kept[list(zeroed_ids)] = 0.0
        self.zeroes = bool(zeroed_ids)
        self.register_buffer("kept", kept)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return `[B, V] float32` for tokens `[B, L] int64`."""
        weights = self.weights(input_ids, attention_mask, token_type_ids)  # [B, V]
        if self.normalized:
            weights = normalize(weights, dim=-1)
        if self.max_active_dims is not None:
            # Where a row has fewer terms than it may keep, the rest of what is kept are zeros.
            largest, terms = weights.topk(min(self.max_active_dims, weights.shape[-1]), dim=-1)
            weights = torch.zeros_like(weights).scatter(-1, terms, largest)
        return weights * self.kept if self.zeroes else weights


class Pooled(nn.Module):
    """The logits of an encoder, activated and pooled over the tokens of a text."""

    def __init__(self, side: EncoderSide) -> None:
        super().__init__()
        assert isinstance(side, EncodedSide)
        self.logits = TokenLogits(side)
        self.pooling = side.pooling
        self.double_log1p = side.double_log1p

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Return `[B, V]`."""
        logits = self.logits(input_ids, attention_mask, token_type_ids)  # [B, L, V]
        masked = logits * attention_mask.unsqueeze(-1).to(logits.dtype)  # 0 for padding
        if self.pooling == "max":
            # relu and log1p grow with their argument, so the maximum can be taken first: V values, not L * V.
            return self._activated(masked.amax(dim=1))
        return self._activated(masked).sum(dim=1)

    def _activated(self, logits: Tensor) -> Tensor:
        weights = torch.log1p(torch.relu(logits))
        return torch.log1p(weights) if self.double_log1p else weights


class TokenLogits(nn.Module):
    """The logits of the tokens, of a masked language model or of states that are decoded.

    Args:
        side: What encodes the texts.
        more_log1p: How often the encoder applies log1p more than the runtime that reads the logits: 0; 1,
            where it is then applied here; or -1, where it is undone here.
    """

    def __init__(self, side: EncodedSide, more_log1p: int = 0) -> None:
        super().__init__()
        self.model = side.model
        self.decoder = side.decoder
        self.has_token_types = side.has_token_types
        self.more_log1p = more_log1p

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return `[B, L, V]`."""
        types = {"token_type_ids": token_type_ids} if self.has_token_types else {}
        found = self.model(input_ids=input_ids, attention_mask=attention_mask, **types)
        logits = found.logits if self.decoder is None else self.decoder(found.last_hidden_state)
        if self.more_log1p == 0:
            return logits
        positive = torch.relu(logits)
        return torch.log1p(positive) if self.more_log1p > 0 else torch.expm1(positive)


class Lookup(nn.Module):
    """The weight of each distinct token of a text, from a table."""

    def __init__(self, side: LookupSide) -> None:
        super().__init__()
        self.table: Tensor
        self.register_buffer("table", side.weights.clone())

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Return `[B, V]`."""
        table = self.table
        present = torch.zeros(input_ids.shape[0], len(table), dtype=table.dtype)  # [B, V]
        # A padding token writes 0 to its own entry, whose weight is 0 in the table as well.
        return present.scatter(1, input_ids, attention_mask.to(table.dtype)) * table


class Pairs(nn.Module):
    """The terms of one text and their weights, as Anserini reads them."""

    def __init__(self, side: EncoderSide) -> None:
        super().__init__()
        self.weights = TermWeights(side)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return `[N] int64` and `[N] float32` for one text, `[1, L]`."""
        row = self.weights(input_ids, attention_mask, token_type_ids)[0]  # [V]
        terms = torch.nonzero(row).squeeze(-1)  # [N]
        return terms, row[terms]
