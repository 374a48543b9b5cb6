"""The running average of the weights over the last steps of a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.runs.finite import whole_tensor
from lexforge.runs.state_file import StateFile, checkpoint_folder, resumed_folder
from lexforge.settings import FinishSettings

AVERAGE = StateFile("weight_average.safetensors", "lexforge-weight-average", "average of the weights")


class WeightAverage(TrainerCallback):
    """Averages the weights over the steps, so that a high learning rate may stay high to the end.

    Each step of such a training leaves noise in the weights, and the average takes it out. After step t,

        average += (weights - average) / min(t, h),    h = max(1, horizon * steps),

    which is the plain mean of the first h steps, and from then on a moving average in which a step of h steps
    ago counts a third of the last one. Training goes on from its own weights. The average is in float32, on
    the device of the weights, and under FSDP2 in shards like them; each checkpoint holds it whole in
    `weight_average.safetensors`.

    Args:
        horizon: The number h of steps as a share of all steps, in [0, 1]; below one step it is one step.

    Raises:
        ValueError: If the horizon is out of range. When training begins: if the file of the checkpoint is
            damaged or of another step.
        FileNotFoundError: If a resumed run finds no such file in its checkpoint.

    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging" (1992); Izmailov et
    al., "Averaging weights leads to wider optima and better generalization" (arXiv 1803.05407);
    docs/losses.md, section 18.
    """

    def __init__(self, horizon: float) -> None:
        self.horizon = FinishSettings(average_horizon=horizon).average_horizon
        self._averages: dict[str, Tensor] = {}  # whole, or in shards like the parameters

    @property
    def weights(self) -> dict[str, Tensor]:
        """Name -> average of a parameter, whole; empty before the first step. All ranks must ask together."""
        return {name: whole_tensor(average) for name, average in self._averages.items()}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin anew, or with the average of the checkpoint that a run is resumed from."""
        self._averages = {}
        if state.global_step:
            self.load(resumed_folder(args, state), state.global_step)

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

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the average beside the model of the checkpoint."""
        if state.is_hyper_param_search:
            return
        weights = self.weights  # every rank gathers
        if state.is_world_process_zero:
            AVERAGE.write(weights, checkpoint_folder(args, state), state.global_step)

    def load(self, checkpoint: str | Path, step: int) -> None:
        """Take the average of a checkpoint.

        Args:
            checkpoint: The folder of the checkpoint.
            step: The step of the checkpoint.

        Raises:
            FileNotFoundError: If the checkpoint holds no average.
            ValueError: If the file is damaged or of another step.
        """
        file = Path(checkpoint) / AVERAGE.name
        if not file.is_file():
            raise FileNotFoundError(
                f"{file} does not exist, and a run that is resumed with average_horizon={self.horizon:g} "
                "needs the average of its weights from it. Resume with average_horizon=0 "
                "(--finish.average-horizon 0), as the run began, or from another checkpoint"
            )
        self._averages = AVERAGE.read(Path(checkpoint), step)
