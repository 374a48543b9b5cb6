"""The names under which trackers, such as TensorBoard or Weights & Biases, get the values of the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import integration_utils

# Values of one training step beside the loss, and the group that shows them.
GROUPS = {"learning_rate": "optimizer", "grad_norm": "optimizer", "epoch": "progress", "phase": "progress"}


def grouped(values: Mapping[str, Any]) -> dict[str, Any]:
    """Put each value of a line of the log into a group, as trackers show values together.

    Args:
        values: Name -> value, as the Trainer logs them.

    Returns:
        Name with its group -> value: `loss/...` for the loss and its parts, `share/...` for their shares,
        `terms/...` for active terms, `eval/...` for an evaluation, `optimizer/...` and `progress/...`; what
        else a run logs stands under `train/...`.
    """
    return {_with_group(name): value for name, value in values.items()}


def _with_group(name: str) -> str:
    if "/" in name:
        return name
    if name.startswith("eval_"):
        return f"eval/{name.removeprefix('eval_')}"
    if name in GROUPS:
        return f"{GROUPS[name]}/{name}"
    return "loss/total" if name == "loss" else f"train/{name}"


def group_for_tracker(callback: TrainerCallback) -> None:
    """Let a tracker of transformers log by `grouped` names; any other callback is left as it is.

    Callbacks that read the log, and `log_history`, keep the plain names.

    Args:
        callback: A callback of a trainer.
    """
    if type(callback) not in integration_utils.INTEGRATION_TO_CALLBACK.values():
        return
    plain = callback.on_log

    def on_log(args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> Any:
        with _grouped_names():
            return plain(args, state, control, logs=logs, **kwargs)

    callback.on_log = on_log  # type: ignore[method-assign]  # of this callback alone


@contextmanager
def _grouped_names() -> Iterator[None]:
    """A block in which trackers rename values by `grouped`; they would write `train/` before every name."""
    stock = integration_utils.rewrite_logs
    integration_utils.rewrite_logs = grouped
    try:
        yield
    finally:
        integration_utils.rewrite_logs = stock
