"""The average of the trained weights with those of the start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class StartAverage:
    """The weights of a model at the start of training, and their average with the trained ones.

    Training on one collection takes away some of what a pretrained retriever knows about other ones. The
    average

        (1 - share) * trained + share * start

    gives much of that back and keeps most of what was learned, also where training went further out than it
    could alone, with a higher learning rate. Checkpoints hold the trained weights, because training goes on
    from them. The start is kept in the memory of the CPU.

    Args:
        model: The model before training; its weights are copied.
        share: Share of the start, in [0, 1); 0 keeps the trained weights and copies nothing.

    Raises:
        ValueError: If `share` lies outside [0, 1).

    Source: Wortsman et al., "Robust fine-tuning of zero-shot models" (arXiv 2109.01903), equation 1; Xiao et
    al., "LM-Cocktail" (arXiv 2311.13534), for retrievers.
    """

    def __init__(self, model: nn.Module, share: float) -> None:
        if not 0 <= share < 1:
            raise ValueError(f"start_share must lie in [0, 1); received {share}")
        self.share = share
        self.start = _copied(model) if share else {}

    @torch.no_grad()
    def apply(self, model: nn.Module) -> None:
        """Replace the weights of the model by their average with the start.

        Args:
            model: The model whose weights were copied, on any device.
        """
        for name, tensor in _weights(model).items():
            if name in self.start:
                # In float32 and in one rounding, so that bfloat16 weights lose nothing on the way.
                start = self.start[name].to(tensor.device, torch.float32)
                tensor.copy_(tensor.float().lerp(start, self.share))

    @contextmanager
    def in_place(self, model: nn.Module) -> Iterator[None]:
        """A block in which the model has the average, such as an evaluation; afterwards it has its own.

        Args:
            model: The model whose weights were copied.
        """
        if not self.share:
            yield
            return
        trained = _copied(model)
        self.apply(model)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in _weights(model).items():
                    tensor.copy_(trained[name])


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Name -> parameter; a tied one has one name. Buffers are settings, such as positions, and are left."""
    return {name: parameter.data for name, parameter in model.named_parameters()}


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.to("cpu", copy=True) for name, tensor in _weights(model).items()}
