"""The readable reference of the SPLADE head, which tests and benchmarks compare the fast paths with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def splade_head_reference(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, attention_mask: Tensor, double_log1p: bool = False
) -> Tensor:
    """The formula as it is written, with the logits `[B, L, V]` in memory; arguments as in `splade_head`."""
    if hidden.shape[1] == 0:  # a maximum needs one token: a masked one
        hidden, attention_mask = F.pad(hidden, (0, 0, 0, 1)), F.pad(attention_mask, (0, 1))
    mask = attention_mask.bool().unsqueeze(-1)
    logits = F.linear(hidden.masked_fill(~mask, 0.0), weight)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if bias is not None:
        logits = logits + bias.to(logits.dtype)
    activations = torch.log1p(torch.relu(logits))
    if double_log1p:
        activations = torch.log1p(activations)
    return activations.masked_fill(~mask, 0.0).max(dim=1).values
