"""What a model encodes, as its first module receives it."""

from __future__ import annotations

from typing import Any


def batches_of(model: Any) -> list[Any]:
    """The token ids `[b, l]` of each batch that a model of a test is given from now on."""
    batches: list[Any] = []
    model[0].register_forward_pre_hook(lambda _, given: batches.append(given[0]["input_ids"]))
    return batches
