"""The lines of the log where no progress bar shows the step."""

from __future__ import annotations

from typing import Any

from transformers import PrinterCallback, TrainerControl, TrainerState, TrainingArguments


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
