"""Two trainers, of sparse and of dense encoders, with their rows, collators, curriculum and teachers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.settings import PRESETS, TrainingSettings
    from lexforge.training.any_loss import check_full_batch, check_queue
    from lexforge.training.batch_samplers import weighted_batches
    from lexforge.training.collator import DenseCollator, SpladeCollator
    from lexforge.training.plan import Plan
    from lexforge.training.recipe import (
        QuarterSteps,
        begin_run,
        check_training,
        finish_run,
        load_start,
        read_retrieval,
        save_model,
        trainer_options,
    )
    from lexforge.training.recipe_rows import (
        check_triplet_rows,
        choose_negatives,
        load_rows,
        unknown_rows,
    )
    from lexforge.training.recipe_terms import Terms, case_notes
    from lexforge.training.trainer import DenseTrainer, SpladeTrainer

__all__ = [
    "PRESETS",
    "DenseCollator",
    "DenseTrainer",
    "Plan",
    "QuarterSteps",
    "SpladeCollator",
    "SpladeTrainer",
    "Terms",
    "TrainingSettings",
    "begin_run",
    "case_notes",
    "check_full_batch",
    "check_queue",
    "check_training",
    "check_triplet_rows",
    "choose_negatives",
    "finish_run",
    "load_rows",
    "load_start",
    "read_retrieval",
    "save_model",
    "trainer_options",
    "unknown_rows",
    "weighted_batches",
]

__getattr__, __dir__ = load_when_used(__name__)
