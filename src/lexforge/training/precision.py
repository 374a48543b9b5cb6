"""The formats of a training: float32 for the weights, and what is fastest for the encoder's products."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.common.ranks import from_first_rank
from lexforge.models.training_forward import encoder_name, seconds_of_formats, training_forwards
from lexforge.storage.timings import timed

logger = logging.getLogger(__name__)

_GAIN = 0.9  # bfloat16 must be this fast, in units of float32, to be chosen


def widen_weights(model: nn.Module) -> list[str]:
    """Turn the weights of a model that is to be trained into float32, in place.

    transformers loads a checkpoint in the format in which it was saved. In float16 the gradients overflow,
    and in bfloat16 most steps of an optimizer are smaller than what the format can tell apart.

    Args:
        model: As it was loaded.

    Returns:
        A line that says what was done, or nothing where all weights have 32 bits.
    """
    floats = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    formats = {parameter.dtype for parameter in floats if parameter.dtype.itemsize < 4}
    if not formats:
        return []
    model.float()
    saved = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in formats))
    return [f"the weights were saved in {saved} and are trained, and saved at the end, in float32"]


def widen_products(model: nn.Module) -> None:
    """Let the encoder of a model compute in float32 while it is trained, in place.

    Args:
        model: Any encoder; its transformers get a `TrainingForward`, if they have none yet.
    """
    for forward in training_forwards(model):
        forward.dtype = torch.float32


class EncoderPrecision(TrainerCallback):
    """Train the encoder in bfloat16 if this processor computes it faster so, and everything else in float32.

    Before the first step the forward and backward pass of the very encoder are timed in both formats, once on
    a machine (`lexforge.storage.timings`), so that a run that is repeated there computes the same. The
    weights, the SPLADE head, the loss and the state of the optimizer are float32 in either case, and so is
    every evaluation. All ranks do what the first one chooses. A resumed run keeps the choice. When training
    ends, the trainer sets float32 again (`widen_products`).
    """

    def __init__(self) -> None:
        self.dtype: str | None = None  # once it is chosen

    def state(self) -> dict[str, Any]:
        """What was chosen: the name of a dtype of torch; empty before the first step."""
        return {} if self.dtype is None else {"dtype": self.dtype}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go by what `state` returned."""
        self.dtype = state.get("dtype")

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Choose before the first step of this process, and tell the encoder."""
        forwards = training_forwards(kwargs["model"])
        if self.dtype is None:
            self.dtype = from_first_rank(lambda: self._fastest(forwards, args.device))
        for forward in forwards:
            forward.dtype = getattr(torch, self.dtype)

    def _fastest(self, forwards: list[Any], device: torch.device) -> str:
        if device.type != "cpu" or not forwards:
            return "float32"
        transformer = forwards[0].transformer
        seconds = timed(encoder_name(transformer), partial(seconds_of_formats, transformer))
        if not seconds:
            return "float32"
        whole, half = seconds["float32"], seconds["bfloat16"]
        chosen = "bfloat16" if half < _GAIN * whole else "float32"
        logger.info(
            "the encoder is trained in %s: a small batch took %.3f s in float32 and %.3f s in bfloat16 "
            "(--precision fp32 keeps float32)",
            chosen,
            whole,
            half,
        )
        return chosen
