"""A moving-average copy of an encoder, which embeds keys for queues of negatives (MoCo)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def is_training(model: nn.Module) -> bool:
    """Whether a forward belongs to training: train mode, and gradients are recorded.

    The mode alone does not tell: where a trainer evaluates the model inside a DistributedDataParallel
    wrapper, the wrapper stays in train mode.
    """
    return model.training and torch.is_grad_enabled()


class MomentumEncoder:
    """The exponential moving average of a model's parameters, as an encoder without gradient.

    After each optimizer step, average = momentum * average + (1 - momentum) * parameter. The average starts
    as the model is at its first training forward. Nothing has to be told when a step was taken: at a training
    forward (`is_training`) the average follows if the parameters are not those that it last followed, so
    it moves once an optimizer step however many micro-batches the step has, in every trainer and every loop.
    The comparison reads a checksum of the parameters' bits, because fused optimizers leave autograd's version
    counters alone. In evaluation nothing moves.

    It is no `nn.Module`, so that as an attribute of a loss it is in neither `parameters()` nor
    `state_dict()`, no optimizer updates it and no trainer replaces it. It goes where the model goes. Its
    parameters are float32 at least: in bfloat16, 0.1 % of a difference is lost to rounding.

    Args:
        model: The encoder to follow; its forward writes `sentence_embedding`.
        momentum: Share of the average that a step keeps, in [0, 1).
        train_mode: Whether keys are encoded with dropout while the model trains.

    Raises:
        ValueError: If the momentum is out of range or the model has no parameter.

    Source: He et al. 2020 (arXiv 1911.05722), equation 2.
    """

    def __init__(self, model: nn.Module, momentum: float = 0.999, train_mode: bool = False) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1); received {momentum}")
        first = next(model.parameters(), None)
        if first is None:
            raise ValueError(
                f"a momentum encoder needs a model with parameters; {type(model).__name__} has none"
            )
        self.momentum = momentum
        self.train_mode = train_mode
        self._average = copy.deepcopy(model).requires_grad_(False)
        self._average.to(torch.promote_types(first.dtype, torch.float32))
        self._followed: list[int] | None = None

    def encode(self, model: nn.Module, features: Mapping[str, Any]) -> Tensor:
        """Embed one column; in a training forward the average first follows the model.

        Args:
            model: The model that is followed, as the loss holds it now (wrapped or not).
            features: What the data collator made of the column: `input_ids [B, L]`, `attention_mask [B, L]`,
                ...; not changed.

        Returns:
            `[B, D]` float, without gradient.
        """
        training = is_training(model)
        if training:
            self.follow(model)
        elif self._followed is None:
            self._restart(model)
        self._average.train(self.train_mode and training)
        with torch.no_grad():
            return self._average(dict(features))["sentence_embedding"]

    def follow(self, model: nn.Module) -> None:
        """Move the average, if the model has changed since it last moved; start as the model the first time.

        Whoever saves the average calls this first, so that no step is pending in what is saved; whoever
        writes a saved one back calls it first too, so that it stands until the model changes.

        Args:
            model: The model that is followed.
        """
        current = _checksums(model)
        if self._followed is None:
            self._restart(model)
        elif current != self._followed:
            self._copy_buffers(model)
            for average, parameter in self._pairs(model):
                average.lerp_(parameter.detach().to(average.dtype), 1 - self.momentum)
        self._followed = current

    def tensors(self) -> dict[str, Tensor]:
        """The parameters and persistent buffers by name, not copied; tied ones once."""
        found: dict[int, tuple[str, Tensor]] = {}
        for name, tensor in self._average.state_dict(keep_vars=True).items():
            if isinstance(tensor, Tensor):
                found.setdefault(id(tensor), (name, tensor))
        return dict(found.values())

    @torch.no_grad()
    def _restart(self, model: nn.Module) -> None:
        self._copy_buffers(model)
        for average, parameter in self._pairs(model):
            average.copy_(parameter)

    @torch.no_grad()
    def _copy_buffers(self, model: nn.Module) -> None:
        self._place(model)
        for own, buffer in zip(self._average.buffers(), model.buffers(), strict=True):
            own.copy_(buffer)

    def _place(self, model: nn.Module) -> None:
        device = next(model.parameters()).device
        if next(self._average.parameters()).device != device:
            self._average.to(device)

    def _pairs(self, model: nn.Module) -> list[tuple[Tensor, Tensor]]:
        pairs: list[tuple[Tensor, Tensor]] = list(
            zip(self._average.parameters(), model.parameters(), strict=True)
        )
        for average, parameter in pairs:
            if average.shape != parameter.shape:
                raise ValueError(
                    f"the momentum encoder was built for a parameter {tuple(average.shape)} where the model "
                    f"now has {tuple(parameter.shape)}; it cannot follow a sharded or another model"
                )
        return pairs


def _checksums(model: nn.Module) -> list[int]:
    """One sum a parameter over its bits, read as integers; an optimizer step changes some of them."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = []
    for parameter in model.parameters():
        bits = parameter.detach().reshape(-1)
        # in words of eight bytes, twenty times as fast, where the size allows it
        in_words = bits.nbytes % 8 == 0 and bits.storage_offset() * bits.element_size() % 8 == 0
        kind = torch.int64 if in_words else integers[bits.element_size()]
        sums.append(bits.view(kind).sum(dtype=torch.int64))
    return torch.stack(sums).tolist()
