"""A first-in-first-out queue of keys and their label sets, from which a loss takes its references."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lexforge.common.text_identity import NO_TEXT


class NonFiniteKeysError(ValueError):
    """Raised where keys that are NaN or infinite would enter a queue and spoil every later batch."""


class KeyQueue(nn.Module):
    """The last `size` keys, L2-normalised, with their labels if they have any.

    With several ranks, enqueue the keys of all ranks (`rows_of_all_ranks`), so that every rank holds the same
    queue. The tensors are buffers: they follow the loss to its device and are saved with its state.

    Args:
        size: Q, the number of keys kept.
        dimension: D of an embedding.
        label_count: L, width of the label sets; None for keys without labels.
        with_texts: Whether the queue keeps the identity of each key's text (docs/losses.md, section 15).

    Raises:
        ValueError: If the size is not a positive integer.

    Source: He et al. 2020 (arXiv 1911.05722), section 3.2; label sets: docs/losses.md, section 14.
    """

    keys: Tensor
    labels: Tensor | None
    texts: Tensor | None
    enqueued: Tensor

    def __init__(
        self, size: int, dimension: int, label_count: int | None = None, *, with_texts: bool = False
    ) -> None:
        super().__init__()
        if not (isinstance(size, int) and size > 0):
            raise ValueError(f"the size of the queue must be a positive integer; received {size!r}")
        self.register_buffer("keys", torch.zeros(size, dimension))
        self.register_buffer(
            "labels", None if label_count is None else torch.zeros(size, label_count, dtype=torch.uint8)
        )
        self.register_buffer("texts", torch.full((size,), NO_TEXT, dtype=torch.int64) if with_texts else None)
        self.register_buffer("enqueued", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return min(int(self.enqueued), len(self.keys))

    @torch.no_grad()
    def enqueue(self, keys: Tensor, labels: Tensor | None = None, texts: Tensor | None = None) -> None:
        """Take in keys; once the queue is full they replace the oldest ones.

        Args:
            keys: `[N, D]` float, of all ranks; normalised here, detached.
            labels: `[N, L]` of 0 and 1, for a queue that keeps them.
            texts: `[N]` int64, identities of the keys' texts, for a queue that keeps them; None where they
                are not known.

        Raises:
            ValueError: If N exceeds the size of the queue.
            NonFiniteKeysError: If a key is not finite.
        """
        size = len(self.keys)
        if len(keys) > size:
            raise ValueError(
                f"a queue of {size} is shorter than the {len(keys)} keys of one batch over all ranks; make "
                "it at least as long"
            )
        if not bool(keys.isfinite().all()):
            raise NonFiniteKeysError(
                f"{int((~keys.isfinite()).any(dim=1).sum())} of {len(keys)} keys are NaN or infinite; they "
                "would stay in the queue and spoil every later batch"
            )
        slots = (self.enqueued + torch.arange(len(keys), device=self.keys.device)) % size
        self.keys[slots] = F.normalize(keys.to(self.keys.dtype), dim=-1)
        if self.labels is not None:
            assert labels is not None
            self.labels[slots] = labels.to(torch.uint8)
        if self.texts is not None:
            self.texts[slots] = NO_TEXT if texts is None else texts
        self.enqueued += len(keys)

    def contents(self) -> tuple[Tensor, Tensor | None]:
        """Return copies of the keys held and their labels: the queue may change before a backward pass.

        Returns:
            `[n, D]` float and `[n, L]` uint8 or None, n at most the size; the order is that of the slots.
        """
        filled = len(self)
        return self.keys[:filled].clone(), None if self.labels is None else self.labels[:filled].clone()

    def held_texts(self) -> Tensor | None:
        """Return a copy of the identities of the texts held, `[n]` int64; None if the queue keeps none."""
        return None if self.texts is None else self.texts[: len(self)].clone()
