"""The curriculum: pure functions of training progress (docs/losses.md, section 9), written into the loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.losses import NeuralSparseLoss
from lexforge.settings import LossSettings, Phase


def phase_at(phases: Sequence[Phase], progress: float) -> int:
    """Return the index of the phase in force.

    Args:
        phases: At least one phase, in order.
        progress: `global_step / max_steps`, in [0, 1].

    Returns:
        Index into `phases`; the last one at progress 1.
    """
    return next((index for index, phase in enumerate(phases) if progress < phase.until), len(phases) - 1)


def ramp_at(progress: float, ramp_fraction: float) -> float:
    """Return the share of the sparsity weights in force, which grows quadratically to 1 and then stays.

    Args:
        progress: `global_step / max_steps`, in [0, 1].
        ramp_fraction: Length of the ramp as a share of training; 0 puts the full weights in force at once.

    Returns:
        A number in [0, 1].

    Source: SPLADE v2 (arXiv 2109.10086), section 4: the regularisation weight grows quadratically.
    """
    if progress >= ramp_fraction:
        return 1.0
    return (progress / ramp_fraction) ** 2


class CurriculumCallback(TrainerCallback):
    """Write the phase's temperature and weights and the sparsity ramp into the loss before each optimizer
    step.

    The values are a pure function of `global_step / max_steps`, so there is nothing to save, and a resumed
    run continues exactly. A term whose weight is 0 at the start stays off in every phase. The learning-rate
    factor of a phase is applied by `SpladeTrainer.create_scheduler`. After training the loss has the values
    that it was given (`own_values`), because it may train again.

    Args:
        loss: The loss to write into.
        phases: The curriculum; an empty sequence leaves the weights and the temperature as they are.
        ramp_fraction: Length of the sparsity ramp as a share of training, in [0, 1].

    Raises:
        ValueError: If the phases do not cover training, or `ramp_fraction` is out of range.
    """

    def __init__(
        self, loss: NeuralSparseLoss, phases: Sequence[Phase] = (), ramp_fraction: float = 0.0
    ) -> None:
        checked = LossSettings(phases=tuple(phases), ramp_fraction=ramp_fraction)
        self.loss = loss
        self.phases, self.ramp_fraction = checked.phases, checked.ramp_fraction
        self.phase_index = 0
        # A term that the user switched off stays off, because a phase would undo an ablation.
        self.switched_on = {name for name, weight in loss.weights.items() if weight}

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the loss for the step that begins."""
        self._write(state.global_step / state.max_steps)

    @contextmanager
    def own_values(self) -> Iterator[None]:
        """A block after which the loss has the values of before, also those that a controller moves."""
        loss = self.loss
        before = loss.regularizer_ramp, loss.temperature, dict(loss.weights), self.phase_index
        factors = loss.sparsity_factors
        try:
            yield
        finally:
            loss.regularizer_ramp, loss.temperature, loss.weights, self.phase_index = before
            loss.sparsity_factors = factors

    @contextmanager
    def final_values(self) -> Iterator[None]:
        """A block in which the loss has the values of the end of training, for an evaluation.

        The values of the step under way would make the evaluation loss move with the schedule: one and the
        same model would seem to improve, and the best checkpoint would be chosen by its step.
        """
        with self.own_values():
            self.loss.sparsity_factors = {}  # a controller moves them at every step
            self._write(1.0)
            yield

    def _write(self, progress: float) -> None:
        """Write the values for a share of training, in [0, 1], into the loss."""
        self.loss.regularizer_ramp = ramp_at(progress, self.ramp_fraction)
        if self.phases:
            self.phase_index = phase_at(self.phases, progress)
            phase = self.phases[self.phase_index]
            self.loss.temperature = phase.temperature
            weights = {"infonce": phase.infonce_weight, "distillation": phase.distillation_weight}
            self.loss.weights |= {name: value for name, value in weights.items() if name in self.switched_on}
