"""TorchScript, which OpenSearch and Elasticsearch load: traced modules as bytes."""

from __future__ import annotations

import copy
import io
import warnings
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from lexforge.export.model_sides import EncodedSide, Side


def portable_side(side: Side) -> Side:
    """Return a copy of a side whose attention is written in plain matrix products.

    The engines bring their own, often older, version of PyTorch's runtime; OpenSearch's has no fused
    attention.

    Args:
        side: The side of an encoder.

    Returns:
        The copy; a table is returned as it is.
    """
    if not isinstance(side, EncodedSide):
        return side
    model = copy.deepcopy(side.model)
    cast(Any, model).set_attn_implementation("eager")
    return replace(side, model=model)


def torchscript_bytes(graph: nn.Module, example: Any, *, freeze: bool) -> bytes:
    """Trace a module.

    Args:
        graph: The module, in evaluation mode.
        example: Its arguments: a tuple, or one dictionary.
        freeze: Whether weights become constants, as eland does it.

    Returns:
        What `torch.jit.load` reads.
    """
    with warnings.catch_warnings(), torch.no_grad():
        # torch announces the end of TorchScript, but the engines load nothing else; and it warns of Python
        # conditions in the trace, for which the written file is run over texts of other lengths.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(graph, example, strict=False, check_trace=False)
        if freeze:
            traced = torch.jit.freeze(traced)
        buffer = io.BytesIO()
        torch.jit.save(traced, buffer)
    return buffer.getvalue()


def load_torchscript(content: bytes) -> Any:
    """Return a module that `torchscript_bytes` wrote."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # as above
        return torch.jit.load(io.BytesIO(content), map_location="cpu")
