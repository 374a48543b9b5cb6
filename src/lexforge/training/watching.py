"""How a run is watched while it trains: evaluation on dev, the best checkpoint, early stopping, the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import TrainerCallback

# A log line every 50 steps says too little of a run this short.
FEW_STEPS = 1000


@dataclass(frozen=True)
class EvaluationSettings:
    """When a run is evaluated, and what follows from the values.

    Args:
        eval_steps: Number of optimizer steps between two evaluations on dev; None evaluates before and after
            training only.
        best_measure: Measure on dev, such as nDCG@10, by which the best checkpoint is chosen. The run then
            saves a checkpoint at each evaluation (not each `save_steps`) and ends with the best model; None
            ends with the last.
        early_stopping: Number of evaluations in a row without a better `best_measure` after which training
            stops; None trains to the end.
        initial_evaluation: Whether the model is measured before training.

    Raises:
        ValueError: If a number is below 1, or an option is given without the one that it needs.
    """

    eval_steps: int | None = None
    best_measure: str | None = None
    early_stopping: int | None = None
    initial_evaluation: bool = True

    def __post_init__(self) -> None:
        for name in ("eval_steps", "early_stopping"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, or None; received {value}")
        for name, needed in (("best_measure", "eval_steps"), ("early_stopping", "best_measure")):
            if getattr(self, name) is not None and getattr(self, needed) is None:
                raise ValueError(f"{name} needs {needed}; received {name} {getattr(self, name)!r} alone")

    def check_measure(self, measures: Sequence[str]) -> None:
        """Refuse a best measure that the evaluation on dev does not compute.

        Args:
            measures: The names of the measures that it computes.

        Raises:
            ValueError: If `best_measure` is none of them.
        """
        if self.best_measure is not None and self.best_measure not in measures:
            raise ValueError(f"best_measure must be one of {list(measures)}; received {self.best_measure!r}")

    def arguments(self) -> dict[str, Any]:
        """Return the settings as arguments of the Trainer, for an evaluator with the name `dev`."""
        if self.eval_steps is None:
            return {}
        arguments: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": self.eval_steps}
        if self.best_measure is not None:
            arguments |= {
                "load_best_model_at_end": True,
                "metric_for_best_model": f"eval_dev_{self.best_measure}",
                "greater_is_better": True,
                "save_steps": self.eval_steps,
            }
        return arguments

    def callbacks(self) -> list[TrainerCallback]:
        """Return the callbacks of the trainer: early stopping, if it was asked for."""
        from lexforge.training.pace import EarlyStopping

        if self.early_stopping is None:
            return []
        return [EarlyStopping(f"eval_dev_{self.best_measure}", self.early_stopping)]


def best_of(state: Any) -> dict[str, dict[str, float]]:
    """Return which checkpoint a trainer has chosen as the best, for the numbers of a run.

    Args:
        state: The `TrainerState` after training.

    Returns:
        `{"best_checkpoint": {"step": ..., "value": ...}}`, or an empty dict where none was chosen.
    """
    if state.best_model_checkpoint is None:
        return {}
    return {"best_checkpoint": {"step": state.best_global_step, "value": state.best_metric}}


def check_reports(names: Sequence[str]) -> None:
    """Refuse a tracker that the Trainer does not know or that is not installed, before the data is read.

    Args:
        names: The trackers of `TrainingSettings.report_to`.

    Raises:
        ValueError: If the Trainer knows no tracker of that name.
        ImportError: If its package is missing.
    """
    if not names:
        return
    from transformers.integrations import get_available_reporting_integrations
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            known = sorted(INTEGRATION_TO_CALLBACK)
            raise ValueError(f"report_to may name {known}; received {name!r}")
        if name not in get_available_reporting_integrations():
            raise ImportError(f"report_to names {name!r}, whose package is not installed")
