"""The parameters on which no embedding depends, and the setting of DistributedDataParallel for them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.training_args import BaseTrainingArguments
from sentence_transformers.util import batch_to_device
from torch import Tensor

from lexforge.common.evaluation_mode import evaluation_mode
from lexforge.common.ranks import world_size


def decide_find_unused(arguments: BaseTrainingArguments, model: BaseModel) -> None:
    """Set `ddp_find_unused_parameters` for several ranks, if the user left it open, to what the model needs.

    The Trainer would set it for every encoder. Then each backward pass walks through the graph once more, and
    a model whose columns take different routes cannot train at all: the parameters of one route are unused in
    the forward pass of the other, and count as ready twice ("mark a variable ready only once"). Without it a
    parameter that never gets a gradient, such as an unused pooler, stops DistributedDataParallel in its
    second step.

    Args:
        arguments: The arguments of the trainer, which are changed.
        model: The model to train.
    """
    if world_size() > 1 and arguments.ddp_find_unused_parameters is None:
        mapping = arguments.router_mapping
        mapping = mapping if isinstance(mapping, dict) else {}
        # Column -> task, or the same for each data set by its name.
        routes = [route for value in mapping.values() for route in _values(value)]
        arguments.ddp_find_unused_parameters = bool(unused_parameters(model, routes))


def unused_parameters(model: BaseModel, tasks: Iterable[str] = ()) -> list[str]:
    """The names of the trained parameters that the embedding of a text does not depend on.

    Args:
        model: An encoder; one short text is encoded, without dropout.
        tasks: The tasks of a model with a `Router`, such as "query" and "document"; a parameter that any of
            them uses is not unused.
    """
    reached: set[Tensor] = set()
    with evaluation_mode(model), torch.enable_grad():
        for task in sorted(set(tasks)) or [""]:  # a model without routes has no task
            inputs = model.preprocess(["a"], **({"task": task} if task else {}))
            reached |= _leaves(model(batch_to_device(inputs, model.device))["sentence_embedding"])
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter not in reached
    ]


def _values(mapping: object) -> list[str]:
    return list(mapping.values()) if isinstance(mapping, dict) else [str(mapping)]


def _leaves(output: Tensor) -> set[Tensor]:
    """The parameters from which an output was computed, found in its graph without a backward pass."""
    found: set[Tensor] = set()
    seen, waiting = set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(node.variable)
        waiting += [parent for parent, _ in node.next_functions]
    return found
