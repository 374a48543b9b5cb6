"""Callbacks that decide when training stops early, and when and how it writes a line of the log."""

from __future__ import annotations

from typing import Any

from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.training.watching import FEW_STEPS


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


class LogPace(TrainerCallback):
    """Write at least ten lines of the log in a short run: one every 10 steps at most, or more often.

    A callback decides this, because a run that is given in epochs learns its number of steps only when
    training begins.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Lower the number of steps between two lines if the run has few."""
        if state.max_steps <= FEW_STEPS:
            state.logging_steps = min(state.logging_steps, max(1, min(10, state.max_steps // 10)))


class LogLines(PrinterCallback):
    """Print each entry of the log as a line that begins with its step, where no progress bar shows that."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print one entry of the log; ranks other than the first print nothing."""
        if state.is_world_process_zero and logs:
            values = (
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in logs.items()
                if name != "total_flos"
            )
            print(f"step {state.global_step} of {state.max_steps}: {', '.join(values)}", flush=True)
