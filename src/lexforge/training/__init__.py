"""The only package that knows the Hugging Face Trainer."""

from lexforge.training.arguments import TrainingSettings
from lexforge.training.callbacks import CollapseCallback, CurriculumCallback
from lexforge.training.checkpoints import DamagedCheckpointError, DiskFullError, last_checkpoint
from lexforge.training.collator import DenseCollator, SpladeCollator
from lexforge.training.curriculum import Phase, phase_at, ramp_at
from lexforge.training.dense import DenseTrainer
from lexforge.training.finite import FiniteTraining, NonFiniteError
from lexforge.training.launch import join_processes
from lexforge.training.loss_state import LossStateCallback
from lexforge.training.negatives import MovingNegatives
from lexforge.training.presets import PRESETS, Preset, PresetName
from lexforge.training.resumable import ResumableTraining
from lexforge.training.run_directory import open_run, write_json
from lexforge.training.signals import TrainingInterrupted
from lexforge.training.trainer import SpladeTrainer

__all__ = [
    "PRESETS",
    "CollapseCallback",
    "CurriculumCallback",
    "DamagedCheckpointError",
    "DenseCollator",
    "DenseTrainer",
    "DiskFullError",
    "FiniteTraining",
    "LossStateCallback",
    "MovingNegatives",
    "NonFiniteError",
    "Phase",
    "Preset",
    "PresetName",
    "ResumableTraining",
    "SpladeCollator",
    "SpladeTrainer",
    "TrainingInterrupted",
    "TrainingSettings",
    "join_processes",
    "last_checkpoint",
    "open_run",
    "phase_at",
    "ramp_at",
    "write_json",
]
