"""The precision that every loss is computed in: float32 at least, outside autocast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
Result = TypeVar("Result")


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return a tensor of half precision in float32; float32 and float64 stay as they are, uncopied."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def in_float32(function: Callable[P, Result]) -> Callable[P, Result]:
    """Let a function compute on its floating tensors in float32 at least, also where autocast is on.

    A sum over a vocabulary overflows in float16, and bfloat16 keeps three digits of it.

    Args:
        function: Takes tensors of any dtype beside other arguments, at least one tensor or none.

    Returns:
        The function; its gradients have the dtypes of the tensors that were given.
    """

    @wraps(function)
    def computed(*args: P.args, **kwargs: P.kwargs) -> Result:
        given: list[Any] = [*args, *kwargs.values()]
        positional: Any = map(_promoted, args)
        named: Any = {name: _promoted(value) for name, value in kwargs.items()}
        with ExitStack() as blocks:
            for device in {value.device.type for value in given if isinstance(value, Tensor)}:
                blocks.enter_context(torch.autocast(device, enabled=False))
            return function(*positional, **named)

    return computed


def _promoted(value: Any) -> Any:
    return at_least_float32(value) if isinstance(value, Tensor) and value.is_floating_point() else value
