"""Tensors that a checkpoint holds beside the model, in a file that is checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import TrainerState, TrainingArguments

from lexforge.storage.files import write_file
from lexforge.storage.manifest import METADATA, pack_manifest, unpack_manifest


@dataclass(frozen=True)
class StateFile:
    """A file in a checkpoint that holds named tensors, the step at which they were saved, and a checksum.

    Args:
        name: Name of the file in the folder of the checkpoint.
        form: Name of the kind, which the file holds too.
        holds: What the tensors are, for messages, such as "state of a loss".
    """

    name: str
    form: str
    holds: str

    def write(self, tensors: Mapping[str, Tensor], folder: Path, step: int) -> None:
        """Write tensors into a checkpoint, beside their place, and rename the file.

        Args:
            tensors: The tensors by name, of any dtype, on any device.
            folder: The folder of the checkpoint.
            step: Its step.
        """
        copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        manifest = pack_manifest(self.form, {"global_step": step}, _parts(copies))
        write_file(
            folder / self.name, lambda beside: save_file(copies, beside, metadata={METADATA: manifest})
        )

    def read(self, folder: Path, step: int) -> dict[str, Tensor]:
        """Read the tensors of a checkpoint.

        Args:
            folder: The folder of the checkpoint.
            step: The step at which they must have been saved.

        Returns:
            The tensors by name, on the CPU.

        Raises:
            ValueError: If the file is damaged, of another kind or of another step.
        """
        file = folder / self.name
        try:
            with safe_open(file, framework="pt") as saved:
                tensors = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118 (`saved` is no dict)
                manifest = (saved.metadata() or {}).get(METADATA)
            saved_step = unpack_manifest(manifest, self.form, _parts(tensors))["global_step"]
        except (SafetensorError, ValueError, LookupError) as error:
            raise ValueError(f"{file} is cut, altered or no {self.holds}: {error}") from error
        if saved_step != step:
            raise ValueError(f"{file} was saved at step {saved_step}, and the run resumes at step {step}")
        return tensors


def checkpoint_folder(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the folder of the checkpoint of this step."""
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"


def resumed_folder(
    args: TrainingArguments, state: TrainerState, checkpoint: str | Path | None = None
) -> Path:
    """Return the folder of the checkpoint that a training is resumed from.

    Args:
        args: The arguments of the training.
        state: The state of the training, as the checkpoint left it.
        checkpoint: The folder, where the user has named it.

    Returns:
        That folder; else `args.resume_from_checkpoint` if it names a folder, and else `checkpoint-<step>`
        under `args.output_dir`. A callback does not see the argument of `Trainer.train`.
    """
    named = checkpoint or args.resume_from_checkpoint
    if checkpoint or (isinstance(named, str) and Path(named).is_dir()):
        return Path(str(named))
    return checkpoint_folder(args, state)


def _parts(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The bytes of tensors under names that say their dtype and shape too. numpy has no bfloat16."""
    return {
        f"{name} {tensor.dtype} {tuple(tensor.shape)}": tensor.reshape(-1).view(torch.uint8).numpy()
        for name, tensor in tensors.items()
    }
