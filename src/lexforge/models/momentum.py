"""A moving-average copy of an encoder, which embeds keys for queues of negatives (MoCo)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def is_training(model: nn.Module) -> bool:
    """Return whether a forward belongs to training: the model is in train mode and gradients are recorded.

    The mode alone does not tell, because a DistributedDataParallel wrapper stays in train mode while a
    trainer evaluates the model inside it.

    Args:
        model: The model, wrapped or not.

    Returns:
        True in a training forward.
    """
    return model.training and torch.is_grad_enabled()


class MomentumEncoder:
    """The exponential moving average of a model's parameters, as an encoder without gradient.

    After each optimizer step, average = momentum * average + (1 - momentum) * parameter. The average starts
    as a copy of the model at its first training forward. The caller need not say when a step was taken: at
    each training forward (`is_training`) the average moves if the parameters differ from those that it last
    followed. So it moves once per optimizer step, however many micro-batches the step has, in every trainer
    and every loop. The comparison uses a checksum of the parameters' bits, because fused optimizers do not
    raise autograd's version counters. In evaluation the average does not move.

    The class is no `nn.Module`. As an attribute of a loss it is therefore in neither `parameters()` nor
    `state_dict()`, no optimizer updates it and no trainer replaces it. It is moved to the model's device. Its
    parameters are at least float32, because a step of 0.1 % of a difference is lost to rounding in bfloat16.

    Args:
        model: The encoder to follow; its forward writes `sentence_embedding`.
        momentum: The share of the average that one step keeps, in [0, 1).

    Raises:
        ValueError: If the momentum is out of range.

    Source: He et al. 2020 (arXiv 1911.05722), equation 2.
    """

    def __init__(self, model: nn.Module, momentum: float = 0.999) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1); received {momentum}")
        self.momentum = momentum
        self.average = copy.deepcopy(model).requires_grad_(False)
        self.average.to(torch.promote_types(next(model.parameters()).dtype, torch.float32))
        self._followed: list[int] | None = None

    def encode(self, model: nn.Module, features: Mapping[str, Any]) -> Tensor:
        """Embed one column; in a training forward, move the average first.

        Args:
            model: The model that is followed, as the loss holds it now (wrapped or not).
            features: The tensors that the data collator made of the column, such as `input_ids [B, L]` and
                `attention_mask [B, L]`; they are not changed.

        Returns:
            `[B, D]` float, without gradient.
        """
        if is_training(model):
            self.follow(model)
        elif self._followed is None:
            self._restart(model)
        self.average.eval()  # keys without dropout
        with torch.no_grad():
            return self.average(dict(features))["sentence_embedding"]

    def follow(self, model: nn.Module) -> None:
        """Move the average if the model has changed since it last moved; the first call copies the model.

        Code that saves the average calls this first, so that it saves no average with a step pending. Code
        that restores a saved average calls it first too, so that the restored values stay until the model
        changes.

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
        """Return the parameters and persistent buffers by name, without copies; tied ones stand once."""
        found: dict[int, tuple[str, Tensor]] = {}
        for name, tensor in self.average.state_dict(keep_vars=True).items():
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
        self.average.to(next(model.parameters()).device)
        for own, buffer in zip(self.average.buffers(), model.buffers(), strict=True):
            own.copy_(buffer)

    def _pairs(self, model: nn.Module) -> list[tuple[Tensor, Tensor]]:
        averages, parameters = list(self.average.parameters()), list(model.parameters())
        if [each.shape for each in averages] != [each.shape for each in parameters]:
            raise ValueError(
                f"the momentum encoder was built for a model of {len(averages)} parameters; received one of "
                f"{len(parameters)}, or of other shapes. It cannot follow a sharded or another model: add "
                "adapters and modules to a model before its loss is made"
            )
        return list(zip(averages, parameters, strict=True))


def _checksums(model: nn.Module) -> list[int]:
    """Return one sum for each parameter over its bits, read as integers; a step changes some of the sums."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = []
    for parameter in model.parameters():
        bits = parameter.detach().reshape(-1)
        # Words of eight bytes are twenty times as fast to sum, where size and offset allow them.
        in_words = bits.nbytes % 8 == 0 and bits.storage_offset() * bits.element_size() % 8 == 0
        dtype = torch.int64 if in_words else integers[bits.element_size()]
        sums.append(bits.view(dtype).sum(dtype=torch.int64))
    return torch.stack(sums).tolist()
