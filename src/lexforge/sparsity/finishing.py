"""What becomes of the trained weights at the end: averages over steps and with the start, and a threshold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from sentence_transformers import SparseEncoder
from torch import Tensor, nn

from lexforge.models import lower_bias
from lexforge.settings import FinishSettings


class Finishing:
    """Makes the weights that are used out of the trained ones: averages them, and drops weak terms.

    Where there is a running average of the trained weights, it takes their place.

    Training on one collection takes away some of what a pretrained retriever knows about other ones. The
    average

        (1 - start_share) * trained + start_share * start

    gives much of that back and keeps most of what was learned, also where training went further out than it
    could alone, with a higher learning rate. A threshold then drops the weakest terms: the logits of all
    terms fall by `prune_threshold`. Checkpoints hold the trained weights, because training goes on from them.
    The start is kept in the memory of the CPU.

    Args:
        model: The model before training; its weights are copied, and again where another training `begin`s.
        start_share: Share of the start, in [0, 1); 0 keeps the trained weights and copies nothing.
        prune_threshold: What the logit of a term must exceed to stay active, >= 0.
        averages: Returns the running average of each trained parameter by its name, none before the first
            step; None takes the weights of the last step.

    Raises:
        ValueError: If a number is out of range.

    Source: Wortsman et al., "Robust fine-tuning of zero-shot models" (arXiv 2109.01903), equation 1; Xiao et
    al., "LM-Cocktail" (arXiv 2311.13534), for retrievers; docs/losses.md, section 18.
    """

    def __init__(
        self,
        model: nn.Module,
        start_share: float,
        prune_threshold: float = 0.0,
        averages: Callable[[], Mapping[str, Tensor]] | None = None,
    ) -> None:
        checked = FinishSettings(start_share, prune_threshold)
        self.start_share, self.prune_threshold = checked.start_share, checked.prune_threshold
        self.averages = averages
        self.begin(model)

    def begin(self, model: nn.Module) -> None:
        """Take the weights that a model has now for the start of the training that begins."""
        self.start = _copied(model) if self.start_share else {}

    @torch.no_grad()
    def apply(self, model: SparseEncoder) -> None:
        """Turn the model's trained weights into the finished ones, in place.

        Args:
            model: The model whose weights were copied, on any device.

        Raises:
            ValueError: If a threshold is to be applied to a decoder without a bias.
        """
        averages = self.averages() if self.averages else {}
        for name, tensor in _weights(model).items():
            if name not in averages and name not in self.start:
                continue
            # In float32 and in one rounding, so that bfloat16 weights lose nothing on the way.
            finished = averages.get(name, tensor).to(tensor.device, torch.float32)
            if name in self.start:
                start = self.start[name].to(tensor.device, torch.float32)
                finished = finished.lerp(start, self.start_share)
            tensor.copy_(finished)
        if self.prune_threshold:
            lower_bias(model, self.prune_threshold)

    @contextmanager
    def in_place(self, model: SparseEncoder) -> Iterator[None]:
        """A block in which the model has the finished weights, such as an evaluation; then its own again.

        Args:
            model: The model whose weights were copied.
        """
        if not self.start_share and not self.prune_threshold and self.averages is None:
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
