"""How many rows of a batch a model encodes at once, so that the activations fit into the free memory."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers.modeling_layers import GradientCheckpointingLayer

from lexforge.common.device_memory import free_memory
from lexforge.common.ranks import over_ranks
from lexforge.losses.gradient_cache import Features, some_rows
from lexforge.models.structure import has_router

logger = logging.getLogger(__name__)

_SHARE = 0.8  # of the free memory that is used; the rest is for what the backward pass holds for a moment
# Copies of the weights that come after the first measurement: gradients, two states of AdamW and an average.
_COPIES = 4
# Copies of the largest weight, mostly the vocabulary's, whose gradients of several columns are added up.
_SUMMED = 2
# Copies of the embeddings that a loss holds: their gradients, normalised ones, and the gradients of these.
_VECTORS = 4
_MEASURED = 4  # texts
_MEASURES = ("budget", "width", "text", "vector", "shared")  # what `RowsThatFit` goes by


class RowsThatFit:
    """Chooses how many rows of a batch are encoded at once: all of them, or as many as fit into free memory.

    What a text costs is measured on the first batch: a few texts of its widest column are encoded as in
    training, and the bytes that autograd keeps are counted. A model with a `Router` may look queries up or
    encode them by other layers, so that their column is measured beside the widest one of documents. This is
    repeated when a batch is wider. The free memory is read once, before the first gradient, less what
    training will still need beside the activations. All ranks do what the one with the least memory can do.

    The pieces of a batch follow from what was measured before it. So each checkpoint keeps that, and a
    resumed run cuts its batches as the run that it continues.
    """

    def __init__(self) -> None:
        self._budget = 0.0  # bytes for activations and embeddings
        self._width = 0  # tokens of the longest text that was measured
        self._text = self._vector = 0.0  # bytes that one such text keeps, and of its embedding
        self._shared = 0.0  # bytes that all texts of a call keep together
        self._told = 0  # rows of the last message

    def __call__(self, model: nn.Module, columns: list[Features]) -> int | None:
        """Choose for one batch.

        Args:
            model: The encoder, in training, wrapped in DistributedDataParallel or not.
            columns: One dict per text column with `input_ids [B, L]`.

        Returns:
            The rows to encode at once; None encodes the whole batch at once.
        """
        widths = self._measure(model, columns)
        rows, device, own = len(columns[0]["input_ids"]), columns[0]["input_ids"].device, max(widths)
        left = self._budget - self._shared - _VECTORS * self._vector * rows * len(columns)
        needed = self._text * rows * _encoded_width(widths) / self._width
        size = rows
        # Pieces of equal size, and at least two, because one would not be encoded again. Where texts keep
        # nothing, as those that are looked up, pieces would free nothing.
        if needed > left and self._text:
            fitting = max(1, int(left / (self._text * own / self._width)))
            size = math.ceil(rows / max(2, math.ceil(rows / fitting)))
        # As often on every rank, or one would wait for the others.
        size = over_ranks(size, device, "MIN")
        if size == rows:
            return None
        if not self._told or size < self._told:
            logger.warning(
                "%d rows are encoded at once and each a second time in the backward pass, because all %d of "
                "a batch would need %.1f GB for activations and %.1f GB are free for them (mini_batch_size)",
                size,
                rows,
                needed / 1e9,
                max(left, 0) / 1e9,
            )
            self._told = size
        return size

    def largest_batch(self, model: nn.Module, columns: list[Features]) -> int:
        """Tell how many rows could be encoded at once, whatever the size of the batch.

        Args:
            model: As for a call.
            columns: One dict per text column with `input_ids [B, L]`; other rows are taken to be like these.

        Returns:
            The number of rows; 0 if not even one fits.
        """
        widths = self._measure(model, columns)
        per_row = self._text * _encoded_width(widths) / self._width + _VECTORS * self._vector * len(columns)
        return max(0, int((self._budget - self._shared) / per_row))

    def state(self) -> dict[str, Any]:
        """Return what was measured, in JSON types, for `load_state`; empty if nothing was."""
        if not self._width:
            return {}
        return {"machine": _memory_of_machine()} | {name: getattr(self, f"_{name}") for name in _MEASURES}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go by what an earlier process measured, if this one has as much memory.

        Args:
            state: What `state` returned.
        """
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if state["machine"] == _memory_of_machine() and state["budget"] <= free_memory(device):
            for name in _MEASURES:
                setattr(self, f"_{name}", state[name])
        else:  # a smaller container, or other work beside this: the old pieces would not fit
            logger.warning("the memory is measured anew, because there is more or less of it than before")

    def _measure(self, model: nn.Module, columns: list[Features]) -> list[int]:
        """Measure a text, if the columns are wider than those before, and return the width of each column."""
        widths = [column["input_ids"].shape[1] for column in columns]
        own, device = max(widths), columns[0]["input_ids"].device
        widest = over_ranks(own, device, "MAX")
        # On all ranks, because a sharded model must be encoded by all; a resumed one may lack its state.
        if widest > over_ranks(self._width, device, "MIN"):
            self._budget = self._budget or memory_for_activations(model, device)
            measured = [columns[widths.index(own)]]
            if len(columns) > 1 and has_router(model):
                measured = [columns[0], columns[1 + widths[1:].index(max(widths[1:]))]]
            self._text = self._vector = self._shared = 0.0
            for column in measured:
                text, vector, shared = bytes_of_text(model, column)
                self._text = max(self._text, text * widest / column["input_ids"].shape[1])
                self._vector = max(self._vector, vector)
                self._shared = max(self._shared, shared)
            self._width = widest
        return widths


def _encoded_width(widths: Sequence[int]) -> int:
    """Return how many tokens a row has over all columns of a batch, as `embed_columns` pads them.

    The columns behind the first are encoded in one forward pass, which widens them all to the widest.
    """
    first, *others = widths
    return first + len(others) * max(others, default=0)


def bytes_of_text(model: nn.Module, column: Features) -> tuple[float, float, float]:
    """Measure what one text of a column costs in training.

    Args:
        model: The encoder, in training, wrapped in DistributedDataParallel or not. Its weights, gradients and
            the random state stay as they are.
        column: `input_ids [B, L]` and what else the model reads.

    Returns:
        The bytes that autograd keeps of it until the backward pass, the bytes of its embedding, and those
        that it keeps but once for all texts, such as weights in half precision. Under gradient checkpointing
        the first include one layer, which the backward pass computes again.
    """
    model = model.module if isinstance(model, DistributedDataParallel) else model
    kept, vector, shared = _one_text(model, column)
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if layers and layers[0].gradient_checkpointing:
        try:
            for layer in layers:
                layer.gradient_checkpointing = False
            kept += _one_text(model, column)[0] / len(layers)
        finally:
            for layer in layers:
                layer.gradient_checkpointing = True
    return kept, vector, shared


def memory_for_activations(model: nn.Module, device: torch.device) -> float:
    """Tell how much memory training can use for activations, before its first step.

    Args:
        model: The encoder, with no gradients yet.
        device: Where it is trained.

    Returns:
        Bytes: a share of the free memory, of which ranks on one CPU get equal parts, less the gradients and
        the states of the optimizer that are still to come.
    """
    sizes = [_local(weight).nbytes for weight in model.parameters() if weight.requires_grad]
    later = _COPIES * sum(sizes) + _SUMMED * max(sizes, default=0)
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if device.type == "cpu" else 1
    return _SHARE * free_memory(device) / ranks - later


def _one_text(model: nn.Module, column: Features) -> tuple[float, float, float]:
    """The bytes of `_kept` for one of the longest texts, and what texts share.

    The first are the difference between a few texts and one; one text alone tells nothing of what is shared.
    """
    rows = len(column["input_ids"])
    mask = column.get("attention_mask", torch.ones(rows, 1))
    longest = mask.sum(dim=1).argsort(descending=True)

    def of(texts: int) -> tuple[float, float]:
        return _kept(model, some_rows(column, longest[:texts]))

    one, vector = of(1)
    if (texts := min(rows, _MEASURED)) == 1:
        return one, vector, 0.0
    more, _ = of(texts)
    kept = (more - one) / (texts - 1)
    return kept, vector, one - kept


def _kept(model: nn.Module, column: Features) -> tuple[int, int]:
    """The bytes of what autograd keeps of a column, without the weights, and those of its embeddings."""
    tensors: Iterable[Tensor] = (*model.parameters(), *model.buffers())
    own = {_local(tensor).untyped_storage().data_ptr() for tensor in tensors}
    kept: dict[int, int] = {}  # address of a storage -> its bytes; autograd holds it, so no other gets it

    def note(tensor: Tensor) -> Tensor:
        storage = _local(tensor).untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    devices = [column["input_ids"].device] if column["input_ids"].device.type != "cpu" else []
    with (
        torch.random.fork_rng(devices=devices, device_type=devices[0].type if devices else "cuda"),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        embeddings = model(dict(column))["sentence_embedding"]
    return sum(kept.values()), embeddings.nbytes


def _local(tensor: Tensor) -> Any:
    """The part of a sharded tensor that this rank holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _memory_of_machine() -> list[int]:
    """The bytes of the memory that is there, free or not: the processor's and that of the current GPU."""
    own = [torch.cuda.mem_get_info()[1]] if torch.cuda.is_available() else []
    return [psutil.virtual_memory().total, *own]
