"""The callback that keeps the tile sizes of the GPU kernels over an interruption."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.runs.run_directory import write_json

KERNELS = "lexforge.kernels.triton.splade_head_kernels"


class KernelTilesCallback(TrainerCallback):
    """Saves the tile sizes that the Triton SPLADE head has chosen, and sets them in a resumed run.

    The kernels choose them by timing, in each process of its own, and other tile sizes sum in another order:
    without this a resumed run would round differently from the run that it continues. Each rank writes a file
    of its own into the checkpoint. A run that does not use the kernels writes none.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the choices of the checkpoint that the run is resumed from, if it has any."""
        if not state.global_step or not isinstance(args.resume_from_checkpoint, str):
            return
        file = Path(args.resume_from_checkpoint) / _file_name(args)
        if file.is_file():
            from lexforge.kernels.triton.tiles import set_tiles

            set_tiles(json.loads(file.read_text(encoding="utf-8")))

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the choices of this rank beside the model of the checkpoint."""
        if KERNELS not in sys.modules:  # no kernel has run, and Triton may not be installed
            return
        from lexforge.kernels.triton.tiles import chosen_tiles

        chosen = chosen_tiles()
        if chosen["kernels"]:
            folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / _file_name(args), chosen)


def _file_name(args: TrainingArguments) -> str:
    return f"kernel_tiles_{args.process_index}.json"
