"""Two ranks stop where one is asked to, and go on together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("resumed_ranks.py")
NAMES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth")


@pytest.mark.slow
def test_a_run_that_one_rank_is_asked_to_stop_ends_as_the_run_never_stopped(
    run_script: Callable[..., None], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Inside an epoch, at its end and in a later one; every byte of model, optimizer, schedule and random
    states.
    """
    run_script(SCRIPT, tiny_checkpoint, tmp_path, ranks=2)
    whole = tmp_path / "whole" / "checkpoint-10"
    for step in (1, 4, 7):
        run = tmp_path / f"stopped-{step}"
        assert {path.name for path in run.iterdir()} == {
            f"checkpoint-{step}",
            "checkpoint-10",
            "log.jsonl",
        }
        for name in NAMES:
            assert (run / "checkpoint-10" / name).read_bytes() == (whole / name).read_bytes(), (
                f"{step} {name}"
            )
