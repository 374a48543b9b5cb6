"""The curriculum written into the loss, from nothing but the step counter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.losses import NeuralSparseLoss
from lexforge.training.curriculum import Phase, check_phases, phase_at, ramp_at


class CurriculumCallback(TrainerCallback):
    """Write the phase's temperature and weights and the sparsity ramp into the loss before each optimizer
    step.

    The values are a pure function of `global_step / max_steps`: there is nothing to save, and a resumed run
    continues exactly. A term whose weight is 0 at the start stays off in every phase. The learning-rate
    factor of a phase is applied by `SpladeTrainer.create_scheduler`.

    Args:
        loss: The loss to write into.
        phases: The curriculum; empty leaves weights and temperature as they are.
        ramp_fraction: Length of the sparsity ramp as a share of training.

    Raises:
        ValueError: If the phases do not cover training, or the ramp is not in [0, 1].
    """

    def __init__(
        self, loss: NeuralSparseLoss, phases: Sequence[Phase] = (), ramp_fraction: float = 0.0
    ) -> None:
        check_phases(phases)
        if not 0 <= ramp_fraction <= 1:
            raise ValueError(f"ramp_fraction must lie in [0, 1]; received {ramp_fraction}")
        self.loss = loss
        self.phases = tuple(phases)
        self.ramp_fraction = ramp_fraction
        self.phase_index = 0
        # A term that was switched off stays off: no phase turns it on again.
        self.switched_on = {name for name, weight in loss.weights.items() if weight}

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the loss for the step that begins."""
        progress = state.global_step / state.max_steps
        self.loss.regularizer_ramp = ramp_at(progress, self.ramp_fraction)
        if self.phases:
            self.phase_index = phase_at(self.phases, progress)
            phase = self.phases[self.phase_index]
            self.loss.temperature = phase.temperature
            weights = {"infonce": phase.infonce_weight, "distillation": phase.distillation_weight}
            self.loss.weights |= {name: value for name, value in weights.items() if name in self.switched_on}
