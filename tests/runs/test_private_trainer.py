"""The private methods of the Trainer that `lexforge.runs.resumable` overrides or calls are there.

What they do is tested by what becomes of a run: in `test_resumable.py` and `test_state.py`, and under FSDP2
in `tests/distributed/test_fsdp_ranks.py`.
"""

from __future__ import annotations

import inspect

import pytest
from sentence_transformers.base.trainer import BaseTrainer

from lexforge.runs.resumable import ResumableTraining


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("_save_checkpoint", ["model", "trial"]),
        ("_save_optimizer_and_scheduler", ["folder"]),
        ("_load_from_checkpoint", ["folder"]),
        ("_load_best_model", []),
        ("_get_output_dir", ["trial"]),
        ("_push_from_checkpoint", ["folder"]),
    ],
)
def test_each_private_method_takes_what_it_is_given(name: str, given: list[str]) -> None:
    """A renamed method would leave an override that nobody calls; some of them only sharded runs or uploads
    would call.
    """
    inspect.signature(getattr(BaseTrainer, name)).bind("trainer", *given)


def test_the_model_that_the_trainer_passes_under_fsdp_is_taken() -> None:
    """sentence-transformers does not take it, which is the reason for the override."""
    inspect.signature(ResumableTraining._load_from_checkpoint).bind("trainer", "folder", "model")
