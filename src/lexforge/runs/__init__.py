"""What keeps a run alive: its directory, its checkpoints on disk, signals, and the state of its loss.

Nothing here knows a trainer; `lexforge.training` builds on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.runs.checkpoints import DamagedCheckpointError, DiskFullError, last_checkpoint
    from lexforge.runs.finite import NonFiniteError
    from lexforge.runs.launch import join_processes, launch_command, leave_processes
    from lexforge.runs.log_file import LogFile, read_log
    from lexforge.runs.loss_state import LossStateCallback
    from lexforge.runs.resume import resume_command
    from lexforge.runs.run_directory import open_run, write_json
    from lexforge.runs.signals import TrainingInterrupted
    from lexforge.runs.stages import Stages
    from lexforge.runs.start import check_run_directory, claim_run_directory, start_processes

__all__ = [
    "DamagedCheckpointError",
    "DiskFullError",
    "LogFile",
    "LossStateCallback",
    "NonFiniteError",
    "Stages",
    "TrainingInterrupted",
    "check_run_directory",
    "claim_run_directory",
    "join_processes",
    "last_checkpoint",
    "launch_command",
    "leave_processes",
    "open_run",
    "read_log",
    "resume_command",
    "start_processes",
    "write_json",
]

__getattr__, __dir__ = load_when_used(__name__)
