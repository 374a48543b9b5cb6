"""Two trainers, of sparse and of dense encoders, with their rows, collators, curriculum and teachers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.settings import PRESETS, EvaluationSettings, Phase, Preset, PresetName, TrainingSettings
    from lexforge.training.any_loss import check_full_batch
    from lexforge.training.bm25_teacher import BM25Teacher
    from lexforge.training.callbacks import CollapseCallback, CurriculumCallback
    from lexforge.training.collator import DenseCollator, SpladeCollator
    from lexforge.training.curriculum import phase_at, ramp_at
    from lexforge.training.dense import DenseTrainer
    from lexforge.training.hub import hub_arguments, push_model
    from lexforge.training.recipe import check_run, early_stopping, finish_run
    from lexforge.training.rows import (
        check_triplet_rows,
        choose_negatives,
        load_rows,
        mining_rule,
    )
    from lexforge.training.teacher import (
        choose_teacher,
        embed_by_teacher,
        load_teacher,
        without_single_scores,
    )
    from lexforge.training.trainer import SpladeTrainer

__all__ = [
    "PRESETS",
    "BM25Teacher",
    "CollapseCallback",
    "CurriculumCallback",
    "DenseCollator",
    "DenseTrainer",
    "EvaluationSettings",
    "Phase",
    "Preset",
    "PresetName",
    "SpladeCollator",
    "SpladeTrainer",
    "TrainingSettings",
    "check_full_batch",
    "check_run",
    "check_triplet_rows",
    "choose_negatives",
    "choose_teacher",
    "early_stopping",
    "embed_by_teacher",
    "finish_run",
    "hub_arguments",
    "load_rows",
    "load_teacher",
    "mining_rule",
    "phase_at",
    "push_model",
    "ramp_at",
    "without_single_scores",
]

__getattr__, __dir__ = load_when_used(__name__)
