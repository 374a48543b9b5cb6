"""Checks that numbers are finite, on one rank or several, and words for the rows on which they were not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from lexforge.common.ranks import world_size

# The key of a batch under which the collator puts the texts of its rows, one tuple of strings per row.
ROWS_KEY = "lexforge_rows"
SHOWN_ROWS, SHOWN_LETTERS = 8, 40
Row = tuple[str, ...]


class NonFiniteError(RuntimeError):
    """Training stopped because a part of the loss, a gradient or a parameter became NaN or infinite."""


def norm_of(named: Iterable[tuple[str, Tensor]]) -> Tensor:
    """The norm of all tensors together, a 0-dim tensor; it is finite only if every entry is.

    Args:
        named: Pairs of a name and a floating-point tensor of any shape, all in shards or none.
    """
    return whole_tensor(get_total_norm([tensor.detach() for _, tensor in named]))


def any_non_finite(*numbers: Tensor) -> bool:
    """Whether one of the numbers is NaN or infinite on any rank; all ranks must ask together.

    The answer waits for the device once, however many numbers there are.

    Args:
        *numbers: 0-dim floating-point tensors on one device.
    """
    broken = ~torch.stack([torch.isfinite(number) for number in numbers]).all()
    if world_size() > 1:
        broken = broken.float()  # a reduction by maximum takes numbers
        dist.all_reduce(broken, op=dist.ReduceOp.MAX)
    return bool(broken)


def non_finite_names(named: Iterable[tuple[str, Tensor]], *, count_norm: bool) -> list[str] | None:
    """The names of the tensors that hold a NaN or an infinite entry; all ranks must ask together.

    Args:
        named: As in `norm_of`.
        count_norm: Whether finite entries with an infinite norm count as wrong, under the name "the norm of
            the gradients".

    Returns:
        None if nothing is wrong on any rank. Otherwise the names that this rank found, which is an empty list
        if only other ranks found something.
    """
    found = [(name, tensor.detach()) for name, tensor in named]
    norm = norm_of(found)
    names = [name for name, tensor in found if not is_finite(tensor)]
    if not names and count_norm and not torch.isfinite(norm):
        names = ["the norm of the gradients"]  # each entry is finite, and the sum of the squares is not
    return names if on_any_rank(bool(names), norm.device) else None


def is_finite(tensor: Tensor) -> bool:
    """Whether every entry is finite; all ranks must ask together if the tensor is in shards."""
    return bool(torch.isfinite(whole_tensor(tensor)).all())


def whole_tensor(tensor: Tensor) -> Tensor:
    """A tensor whose shards lie on several ranks, gathered on each of them; any other tensor unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def on_any_rank(flag: bool, device: torch.device) -> bool:
    """Whether a flag is set on any rank. If one rank stops, all must, or the others would wait for it."""
    if world_size() == 1:
        return flag
    number = torch.tensor(float(flag), device=device)
    dist.all_reduce(number, op=dist.ReduceOp.MAX)
    return bool(number)


def texts_of(row: dict[str, Any]) -> Row:
    """The texts of a row, in the order of its columns."""
    return tuple(value for value in row.values() if isinstance(value, str))


def describe_non_finite(names: Sequence[str], rows: str) -> str:
    """What every rank that found something has found; all ranks must call this together.

    Args:
        names: What this rank found to be NaN or infinite; empty if it found nothing.
        rows: The rows that this rank worked on, as `describe_rows` words them.

    Returns:
        One sentence without its full stop, the same on every rank.
    """
    ranks: list[Any] = [(list(names), rows)]
    if world_size() > 1:
        own, ranks = ranks[0], [None] * world_size()
        dist.all_gather_object(ranks, own)
    return "; ".join(
        f"{', '.join(found)} became NaN or infinite"
        + (f" on rank {rank}" if len(ranks) > 1 else "")
        + f" with {described}"
        for rank, (found, described) in enumerate(ranks)
        if found
    )


def describe_rows(rows: Sequence[Row], data: Any = None) -> str:
    """The number of the rows, their places in the training data and the beginning of their first texts.

    Args:
        rows: The texts of each row; empty if the collator does not name them.
        data: The data that the rows come from, or None if their places do not matter.

    Returns:
        A few words for an error message.
    """
    if not rows:
        return "rows that the data collator does not name"
    places = _places(rows, data)
    numbers = f" {', '.join(map(str, places))} of the training data" if places else f": {len(rows)} rows"
    texts = ", ".join(repr(row[0][:SHOWN_LETTERS]) for row in rows[:SHOWN_ROWS])
    return f"rows{numbers} ({texts}{', ...' if len(rows) > SHOWN_ROWS else ''})"


def _places(rows: Sequence[Row], data: Any) -> list[int]:
    """The indices of rows in the data, found by their texts; empty if the data cannot be read by index."""
    if not hasattr(data, "__getitem__") or isinstance(data, dict):
        return []
    found: dict[Row, int] = {}
    for place, row in enumerate(data):
        found.setdefault(texts_of(row), place)
    return [found[row] for row in rows if row in found]
