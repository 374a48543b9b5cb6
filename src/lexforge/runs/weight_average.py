"""The running average of the weights over the last steps of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.runs.sharded import whole_tensor
from lexforge.settings import FinishSettings


class WeightAverage(TrainerCallback):
    """Averages the weights over the steps, so that a high learning rate may stay high to the end.

    Each step of such a training leaves noise in the weights, and the average takes it out. After step t,

        average += (weights - average) / min(t, h),    h = max(1, horizon * steps),

    which is the plain mean of the first h steps, and from then on a moving average in which a step of h steps
    ago counts a third of the last one. Training goes on from its own weights. The average is in float32, on
    the device of the weights, and under FSDP2 in shards like them; as a part of `RunStateCallback` it is kept
    whole in each checkpoint.

    Args:
        horizon: The number h of steps as a share of all steps, in [0, 1]; below one step it is one step.

    Raises:
        ValueError: If the horizon is out of range.

    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging" (1992); Izmailov et
    al., "Averaging weights leads to wider optima and better generalization" (arXiv 1803.05407);
    docs/losses.md, section 18.
    """

    def __init__(self, horizon: float) -> None:
        self.horizon = FinishSettings(average_horizon=horizon).average_horizon
        self._averages: dict[str, Tensor] = {}  # whole, or in shards like the parameters

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin anew, unless the run is resumed: `RunStateCallback` restores the average then."""
        if not state.global_step:
            self._averages = {}

    @torch.no_grad()
    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the weights of this step into the average."""
        share = 1 / min(state.global_step, max(1.0, self.horizon * state.max_steps))
        model: nn.Module = kwargs["model"]
        for name, parameter in model.named_parameters():
            weights, average = parameter.detach().float(), self._averages.get(name)
            if average is None:
                self._averages[name] = weights.clone()
                continue
            if isinstance(weights, DTensor) and not isinstance(average, DTensor):  # read from a checkpoint
                average = distribute_tensor(
                    average.to(weights.device), weights.device_mesh, weights.placements
                )
            self._averages[name] = average.to(weights.device).lerp_(weights, share)

    def state(self) -> dict[str, Tensor]:
        """Return the averages by name of the parameter, whole; all ranks must ask together.

        There are none before the first step.
        """
        return {name: whole_tensor(average) for name, average in self._averages.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take what `state` returned."""
        self._averages = dict(state)
