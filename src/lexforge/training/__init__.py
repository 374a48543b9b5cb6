"""The only package that knows the Hugging Face Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.settings import PRESETS, EvaluationSettings, Phase, Preset, PresetName, TrainingSettings
    from lexforge.training.batches import check_full_batch
    from lexforge.training.callbacks import CollapseCallback, CurriculumCallback
    from lexforge.training.collator import DenseCollator, SpladeCollator
    from lexforge.training.curriculum import phase_at, ramp_at
    from lexforge.training.dense import DenseTrainer
    from lexforge.training.diagnosis import diagnose
    from lexforge.training.finite import FiniteTraining
    from lexforge.training.hub import hub_arguments, push_model
    from lexforge.training.recipe import check_run, finish_run
    from lexforge.training.resumable import ResumableTraining
    from lexforge.training.rows import NEGATIVE_RULE, check_triplet_rows, choose_negatives, load_rows
    from lexforge.training.stopping import early_stopping
    from lexforge.training.symptoms import measure_symptoms, record_symptoms
    from lexforge.training.trainer import SpladeTrainer

__all__ = [
    "NEGATIVE_RULE",
    "PRESETS",
    "CollapseCallback",
    "CurriculumCallback",
    "DenseCollator",
    "DenseTrainer",
    "EvaluationSettings",
    "FiniteTraining",
    "Phase",
    "Preset",
    "PresetName",
    "ResumableTraining",
    "SpladeCollator",
    "SpladeTrainer",
    "TrainingSettings",
    "check_full_batch",
    "check_run",
    "check_triplet_rows",
    "choose_negatives",
    "diagnose",
    "early_stopping",
    "finish_run",
    "hub_arguments",
    "load_rows",
    "measure_symptoms",
    "phase_at",
    "push_model",
    "ramp_at",
    "record_symptoms",
]

__getattr__, __dir__ = load_when_used(__name__)
