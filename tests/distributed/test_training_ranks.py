"""Every preset trains the same model on two ranks as on one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lexforge.training import PRESETS

SCRIPT = Path(__file__).with_name("training_ranks.py")


def run(launch: list[str], checkpoint: Path, output: Path) -> dict:
    """What the script saved after training every preset."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *launch, str(SCRIPT), str(checkpoint), str(output)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(output)


@pytest.fixture(scope="module")
def two_ranks(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    return run(launch, tiny_checkpoint, tmp_path_factory.mktemp("ranks") / "two.pt")


@pytest.fixture(scope="module")
def one_rank(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    return run([], tiny_checkpoint, tmp_path_factory.mktemp("ranks") / "one.pt")


@pytest.mark.slow
@pytest.mark.timeout(1700)
@pytest.mark.parametrize("preset", PRESETS)
def test_twenty_steps_on_two_ranks_are_those_on_one(preset: str, two_ranks: dict, one_rank: dict) -> None:
    """Hard negatives, teacher, curriculum, ramp, IDF FLOPS, clipping, AdamW and the schedule together: the
    same parts at every step, the same gradients at the first and the last, the same weights at the end.
    """
    joint, one = two_ranks[preset], one_rank[preset]
    assert len(one["parts"]) == 20
    assert set(one["gradients"]) == {0, 19}
    # float64 throughout: the order of sums and the padding of a batch differ, and twenty steps of AdamW,
    # which divides by the size of a gradient, carry the difference on.
    torch.testing.assert_close(joint["parts"], one["parts"], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(joint["gradients"][0], one["gradients"][0], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(joint["gradients"], one["gradients"], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(joint["weights"], one["weights"], rtol=1e-7, atol=1e-8)
