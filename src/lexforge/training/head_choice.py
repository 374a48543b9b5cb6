"""The callback that keeps the measured way of the CPU head over an interruption, and records it in a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.kernels.splade_head_choice import head_record, measured_here, take_measured
from lexforge.runs.run_directory import read_json, write_json


class HeadChoiceCallback(TrainerCallback):
    """Saves what the SPLADE head was measured with on processors, and goes by it in a resumed run.

    The ways agree up to the last digits of float32 sums. A resumed run rounds as the run that it continues
    only if it takes the same ways. The user's cache ensures that on one machine, if it can be written to.
    Each rank writes a file of its own into the checkpoint. `env.json` of a run is written before the first
    batch, so what was measured since is added to it at the end.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the measurements of the checkpoint that the run is resumed from, if it has any."""
        if not state.global_step or not isinstance(args.resume_from_checkpoint, str):
            return
        file = Path(args.resume_from_checkpoint) / _file_name(args)
        if file.is_file():
            take_measured(json.loads(file.read_text(encoding="utf-8")))

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the measurements of this rank beside the model of the checkpoint."""
        measured = measured_here()
        if measured["kinds"]:
            folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / _file_name(args), measured)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Complete `env.json`, if the output folder is a run directory."""
        file = Path(str(args.output_dir)) / "env.json"
        if state.is_world_process_zero and (environment := read_json(file)) is not None:
            write_json(file, environment | {"splade_head": head_record()})


def _file_name(args: TrainingArguments) -> str:
    return f"head_choice_{args.process_index}.json"
