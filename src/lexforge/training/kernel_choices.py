"""The callback that keeps over an interruption what the SPLADE head has chosen by timing."""

from __future__ import annotations

from pathlib import Path

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lexforge.kernels.splade_head import choice
from lexforge.kernels.splade_head.triton import tiles
from lexforge.runs.run_directory import read_json, write_json

PARTS = {"splade_head": choice, "triton_tiles": tiles}


class KernelChoicesCallback(TrainerCallback):
    """Writes the choices of each rank into the checkpoint, and takes them again in a resumed run.

    The backends of the head on a CPU, and its tile sizes on a GPU, agree up to the last digits of float32
    sums. To round as the run that it continues, a resumed run must not choose anew. Each rank has a file of
    its own, `kernel_choices_<rank>.json`, because ranks choose for themselves. A run that has timed nothing
    writes none. `env.json` of a run is written before the first batch, so the timings are added to it at the
    end.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Take the choices of the checkpoint that the run is resumed from, if it has any."""
        if state.global_step and isinstance(args.resume_from_checkpoint, str):
            for name, chosen in (read_json(_file(args, args.resume_from_checkpoint)) or {}).items():
                PARTS[name].load_state(chosen)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Write the choices of this rank beside the model of the checkpoint."""
        chosen = {name: part.state() for name, part in PARTS.items()}
        if any(chosen.values()):
            file = _file(args, Path(str(args.output_dir)) / f"checkpoint-{state.global_step}")
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, {name: part for name, part in chosen.items() if part})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Complete `env.json`, if the output folder is a run directory."""
        file = Path(str(args.output_dir)) / "env.json"
        if state.is_world_process_zero and (environment := read_json(file)) is not None:
            write_json(file, environment | {"splade_head": choice.head_record()})


def _file(args: TrainingArguments, checkpoint: str | Path) -> Path:
    return Path(checkpoint) / f"kernel_choices_{args.process_index}.json"
