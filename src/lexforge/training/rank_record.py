"""A callback that keeps over an interruption what each rank has chosen by timing."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.runs.run_directory import write_json


class RankRecordCallback(TrainerCallback, ABC):
    """Writes a record of each rank into the checkpoint, and hands it back in a resumed run.

    Each rank has a file of its own, `<file_stem>_<rank>.json`, because ranks choose for themselves.

    Args:
        file_stem: The name of the files without rank and extension.
    """

    def __init__(self, file_stem: str) -> None:
        self.file_stem = file_stem

    @abstractmethod
    def record(self) -> dict[str, Any] | None:
        """Return what this rank has chosen, in JSON types; None if there is nothing to keep."""

    @abstractmethod
    def restore(self, record: dict[str, Any]) -> None:
        """Choose the same again.

        Args:
            record: What `record` returned on this rank in the run that is continued.
        """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the record of the checkpoint that the run is resumed from, if it has one."""
        if not state.global_step or not isinstance(args.resume_from_checkpoint, str):
            return
        file = Path(args.resume_from_checkpoint) / self._file_name(args)
        if file.is_file():
            self.restore(json.loads(file.read_text(encoding="utf-8")))

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the record of this rank beside the model of the checkpoint."""
        record = self.record()
        if record is not None:
            folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / self._file_name(args), record)

    def _file_name(self, args: TrainingArguments) -> str:
        return f"{self.file_stem}_{args.process_index}.json"
