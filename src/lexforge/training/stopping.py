"""The callback that stops a training whose value on dev gets no better."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.settings import EvaluationSettings


def early_stopping(settings: EvaluationSettings) -> list[TrainerCallback]:
    """Return the callback that the settings ask for, for an evaluator with the name `dev`; else none."""
    if settings.early_stopping is None:
        return []
    return [EarlyStopping(f"eval_dev_{settings.best_measure}", settings.early_stopping)]


class EarlyStopping(TrainerCallback):
    """Stop after a number of evaluations in a row without a better value.

    The Trainer's own `EarlyStoppingCallback` counts in memory, so a resumed run would begin to count anew.
    This one reads the values from the log of the run, which each checkpoint holds: a resumed run stops where
    an uninterrupted one does.

    Args:
        measure: Name of the measure in the log, such as "eval_dev_nDCG@10"; higher is better.
        patience: Number of evaluations without a better value, at least 1.
    """

    def __init__(self, measure: str, patience: int) -> None:
        self.measure = measure
        self.patience = patience

    def _exhausted(self, state: TrainerState) -> bool:
        """Whether the newest `patience` values are all no better than one before them."""
        values = [line[self.measure] for line in state.log_history if self.measure in line]
        return len(values) > self.patience and max(values[-self.patience :]) <= max(values[: -self.patience])

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop if the values say so; the Trainer has logged the newest one before this call."""
        if self._exhausted(state):
            control.should_training_stop = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop a run that was resumed after its last evaluation had already ended it."""
        if self._exhausted(state):
            control.should_training_stop = True
