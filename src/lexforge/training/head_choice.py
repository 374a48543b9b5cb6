"""The callback that keeps the measured way of the CPU head over an interruption, and records it in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments

from lexforge.kernels.splade_head_choice import head_record, measured_here, take_measured
from lexforge.runs.run_directory import read_json, write_json
from lexforge.training.rank_record import RankRecordCallback


class HeadChoiceCallback(RankRecordCallback):
    """Saves what the SPLADE head was measured with on processors, and goes by it in a resumed run.

    The ways of the head agree up to the last digits of float32 sums. To round as the run that it continues, a
    resumed run must take the same ways. The user's cache would keep them too, but not on another machine, nor
    where it cannot be written to. `env.json` of a run is written before the first batch, so what was measured
    since is added to it at the end.
    """

    def __init__(self) -> None:
        super().__init__("head_choice")

    def record(self) -> dict[str, Any] | None:
        """Return what this rank has measured; None if that is nothing."""
        measured = measured_here()
        return measured if measured["kinds"] else None

    def restore(self, record: dict[str, Any]) -> None:
        """Go by what the run that is continued has measured."""
        take_measured(record)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Complete `env.json`, if the output folder is a run directory."""
        file = Path(str(args.output_dir)) / "env.json"
        if state.is_world_process_zero and (environment := read_json(file)) is not None:
            write_json(file, environment | {"splade_head": head_record()})
