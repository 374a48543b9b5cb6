"""What keeps a run alive: directory, checkpoints, resume, signals, state of the loss, finite numbers."""

from lexforge.runs.checkpoints import DamagedCheckpointError, DiskFullError, last_checkpoint
from lexforge.runs.finite import FiniteTraining, NonFiniteError
from lexforge.runs.launch import join_processes
from lexforge.runs.loss_state import LossStateCallback
from lexforge.runs.resumable import ResumableTraining
from lexforge.runs.run_directory import open_run, write_json
from lexforge.runs.signals import TrainingInterrupted

__all__ = [
    "DamagedCheckpointError",
    "DiskFullError",
    "FiniteTraining",
    "LossStateCallback",
    "NonFiniteError",
    "ResumableTraining",
    "TrainingInterrupted",
    "join_processes",
    "last_checkpoint",
    "open_run",
    "write_json",
]
