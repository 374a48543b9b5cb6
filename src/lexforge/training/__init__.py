"""The only package that knows the Hugging Face Trainer."""

from lexforge.training.arguments import TrainingSettings
from lexforge.training.callbacks import CurriculumCallback
from lexforge.training.collator import SpladeCollator
from lexforge.training.curriculum import Phase, phase_at, ramp_at
from lexforge.training.presets import PRESETS, Preset, PresetName
from lexforge.training.run_directory import last_checkpoint, open_run, write_json
from lexforge.training.trainer import NonFiniteLossError, SpladeTrainer

__all__ = [
    "PRESETS",
    "CurriculumCallback",
    "NonFiniteLossError",
    "Phase",
    "Preset",
    "PresetName",
    "SpladeCollator",
    "SpladeTrainer",
    "TrainingSettings",
    "last_checkpoint",
    "open_run",
    "phase_at",
    "ramp_at",
    "write_json",
]
