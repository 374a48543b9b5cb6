"""Callbacks that write the curriculum into the loss and warn when the activations collapse."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.losses import NeuralSparseLoss
from lexforge.report.symptoms import SYMPTOMS, argument_of
from lexforge.settings import Phase, check_phases
from lexforge.training.curriculum import phase_at, ramp_at

logger = logging.getLogger(__name__)


class CurriculumCallback(TrainerCallback):
    """Write the phase's temperature and weights and the sparsity ramp into the loss before each optimizer
    step.

    The values are a pure function of `global_step / max_steps`, so there is nothing to save, and a resumed
    run continues exactly. A term whose weight is 0 at the start stays off in every phase. The learning-rate
    factor of a phase is applied by `SpladeTrainer.create_scheduler`.

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
        check_phases(phases)
        if not 0 <= ramp_fraction <= 1:
            raise ValueError(f"ramp_fraction must lie in [0, 1]; received {ramp_fraction}")
        self.loss = loss
        self.phases = tuple(phases)
        self.ramp_fraction = ramp_fraction
        self.phase_index = 0
        # A term that the user switched off stays off, because a phase would undo an ablation.
        self.switched_on = {name for name, weight in loss.weights.items() if weight}

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the loss for the step that begins."""
        self._write(state.global_step / state.max_steps)

    @contextmanager
    def final_values(self) -> Iterator[None]:
        """A block in which the loss has the values of the end of training, for an evaluation.

        The values of the step under way would make the evaluation loss move with the schedule: one and the
        same model would seem to improve, and the best checkpoint would be chosen by its step.
        """
        loss = self.loss
        before = loss.regularizer_ramp, loss.temperature, dict(loss.weights), self.phase_index
        factors, loss.sparsity_factors = loss.sparsity_factors, {}  # a controller moves them at every step
        self._write(1.0)
        try:
            yield
        finally:
            loss.regularizer_ramp, loss.temperature, loss.weights, self.phase_index = before
            loss.sparsity_factors = factors

    def _write(self, progress: float) -> None:
        """Write the values for a share of training, in [0, 1], into the loss."""
        self.loss.regularizer_ramp = ramp_at(progress, self.ramp_fraction)
        if self.phases:
            self.phase_index = phase_at(self.phases, progress)
            phase = self.phases[self.phase_index]
            self.loss.temperature = phase.temperature
            weights = {"infonce": phase.infonce_weight, "distillation": phase.distillation_weight}
            self.loss.weights |= {name: value for name, value in weights.items() if name in self.switched_on}


class CollapseCallback(TrainerCallback):
    """Warn once when queries or documents stay empty or dense, and say what to change.

    A model whose activations are all zero has no gradient by which it could recover. A model with most terms
    active is not sparse, and its index would be too large.

    Args:
        vocabulary_size: Number of terms, V.
        patience: Number of consecutive lines of the log after which the warning comes.
        dense_fraction: Share of V, in (0, 1]; a text with more active terms than this share is dense.

    Raises:
        ValueError: If a number is out of range.

    Source: the advice is that of `lexforge.report.symptoms`.
    """

    def __init__(self, vocabulary_size: int, *, patience: int = 5, dense_fraction: float = 0.5) -> None:
        if not vocabulary_size > 0 or not patience > 0 or not 0 < dense_fraction <= 1:
            raise ValueError(
                "vocabulary_size and patience must be above 0 and dense_fraction in (0, 1]; received "
                f"{vocabulary_size}, {patience} and {dense_fraction}"
            )
        self.vocabulary_size = vocabulary_size
        self.patience = patience
        self.dense_fraction = dense_fraction
        self._lines: dict[tuple[str, str], int] = {}  # (column, state) -> consecutive lines

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Compare the mean number of active terms per text with both limits."""
        for column in ("query", "document"):
            active = (logs or {}).get(f"terms/{column}")
            if active is None:
                continue
            states = {"empty": active < 1, "dense": active > self.dense_fraction * self.vocabulary_size}
            for name, holds in states.items():
                self._lines[column, name] = self._lines.get((column, name), 0) + 1 if holds else 0
                if self._lines[column, name] == self.patience and state.is_world_process_zero:
                    logger.warning(
                        "step %d: for %d lines of the log a %s has had %.1f of %d terms active: %s",
                        state.global_step,
                        self.patience,
                        column,
                        active,
                        self.vocabulary_size,
                        SYMPTOMS[name].advice_text(argument_of),
                    )
