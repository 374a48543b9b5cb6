"""Batches without a repeated text: as many as an epoch promises, and of rows drawn by weight."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers.base.sampler import NoDuplicatesBatchSampler

# A further pass of an epoch has the order of an epoch that no training reaches.
_FURTHER = 1_000_000


class FullEpochs(NoDuplicatesBatchSampler):
    """Batches that hold no text twice, in as many passes over the rows as the promised number of them takes.

    Where many rows share a text, such as the answer of most questions, one pass yields fewer batches than
    `len` says. The parent adds two passes at most, and the epoch then ends early (in version 6.0 after the
    first one). A training would end before its last step, without a checkpoint there, and a resumed one would
    go on at another place. Only a pass that yields nothing ends such an epoch early. The arguments are those
    of the parent.
    """

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the places of the rows of each batch of the epoch."""
        one, missing, epoch = self, len(self), self.epoch
        for further in count(1):
            taken = 0
            for batch in NoDuplicatesBatchSampler.__iter__(one):
                yield batch
                taken += 1
                if one is not self and taken == missing:
                    return
            missing -= taken
            if missing <= 0 or not taken:
                return
            one = copy(self)  # after the first pass, which has made the hashes
            one.set_epoch(epoch + further * _FURTHER)


class WeightedBatchSampler(FullEpochs):
    """Draws as many rows per epoch as there are, in proportion to their weights, and makes batches of them.

    A row with the share p of the weight of N rows is drawn N p times per epoch, rounded up or down, so a row
    of a small weight is left out of some epochs. The draw follows from the seed and the epoch alone: it is
    the same on all ranks and in a resumed run. No batch holds a text twice, so a row stands in a batch at
    most once, however much it weighs. Where one row weighs so much that the others do not fill the batches,
    sentence-transformers says so, and rows are taken again (`FullEpochs`).

    Args:
        *args: What `FullEpochs` takes.
        weights: `[N]` float64, >= 0, in the order of the rows; at least one is above 0.
        **kwargs: What `FullEpochs` takes.

    Raises:
        ValueError: If there is not one weight per row.

    Source: Madow, "On the Theory of Systematic Sampling, II" (1949), for the draw.
    """

    def __init__(self, *args: Any, weights: NDArray[np.float64], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if len(weights) != len(self.dataset):
            raise ValueError(f"each row needs a weight; received {len(weights)} for {len(self.dataset)} rows")
        self.weights = weights

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the places of the rows of each batch of the epoch."""
        drawn = draw_rows(self.weights, self.seed, self.epoch)
        # Without a generator of its own the order would follow from the global one.
        generator = self.generator or torch.Generator()
        rows = self.dataset.select(drawn)
        batches = FullEpochs(rows, self.batch_size, self.drop_last, generator=generator, seed=self.seed)
        batches.set_epoch(self.epoch)
        for batch in batches:
            yield drawn[batch].tolist()


def draw_rows(weights: NDArray[np.float64], seed: int, epoch: int) -> NDArray[np.int64]:
    """Draw as many rows as there are, in proportion to their weights.

    Args:
        weights: `[N]` float64, >= 0; at least one is above 0.
        seed: Seed of the draw.
        epoch: Number of the epoch, which changes the draw.

    Returns:
        `[N]` int64, ascending places of rows. A row with the share p of all weight stands there N p times,
        rounded up or down.
    """
    ends = np.cumsum(weights)  # row i owns the interval from ends[i - 1] to ends[i]
    start = np.random.default_rng([seed, epoch]).random()
    points = (np.arange(len(weights)) + start) * (ends[-1] / len(weights))  # evenly spaced, [N]
    drawn = np.searchsorted(ends, points, side="right")
    return np.minimum(drawn, np.flatnonzero(weights)[-1])  # a last point may be rounded up to the end


def weighted_batches(weights: NDArray[np.float64] | None) -> dict[str, Any]:
    """Return the training argument that draws rows by weight; none without weights.

    Args:
        weights: `[N]` float64, as for `WeightedBatchSampler`; None draws each row once per epoch.
    """
    return {} if weights is None else {"batch_sampler": partial(WeightedBatchSampler, weights=weights)}
