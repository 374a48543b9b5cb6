"""What a killed run needs, whatever trains: its directory, whole checkpoints, one file of state, signals.

`ResumableTraining` and `FiniteTraining` are mixed into a trainer of sentence-transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.runs.checkpoint_folders import DamagedCheckpointError, DiskFullError
    from lexforge.runs.finite import FiniteTraining, NonFiniteError
    from lexforge.runs.launcher import launch_command
    from lexforge.runs.log_file import read_log
    from lexforge.runs.processes import leave_processes, start_processes
    from lexforge.runs.resumable import ResumableTraining
    from lexforge.runs.run_directory import (
        check_run_directory,
        claim_run_directory,
        resume_command,
        write_json,
    )
    from lexforge.runs.signals import TrainingInterrupted
    from lexforge.runs.stages import Stages
    from lexforge.runs.state import RunStateCallback
    from lexforge.runs.weight_average import WeightAverage

__all__ = [
    "DamagedCheckpointError",
    "DiskFullError",
    "FiniteTraining",
    "NonFiniteError",
    "ResumableTraining",
    "RunStateCallback",
    "Stages",
    "TrainingInterrupted",
    "WeightAverage",
    "check_run_directory",
    "claim_run_directory",
    "launch_command",
    "leave_processes",
    "read_log",
    "resume_command",
    "start_processes",
    "write_json",
]

__getattr__, __dir__ = load_when_used(__name__)
