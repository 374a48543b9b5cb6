"""The fused head of a model sharded by FSDP2 has the gradients of the whole model."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("sharded_ranks.py")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_shards_equal_one_process_with_the_joint_batch(
    run_script: Callable[..., None], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """The head reads the output embedding outside its forward, which FSDP1 forbids and FSDP2 allows as long
    as that layer belongs to the root's group; `ShardedTraining` sees to that.
    """
    output = tmp_path / "results.pt"
    run_script(SCRIPT, tiny_checkpoint, output, ranks=2, timeout=800)
    file = SCRIPT.with_name("neural_sparse_ranks.py")
    specification = importlib.util.spec_from_file_location("neural_sparse_ranks", file)
    assert specification is not None
    assert specification.loader is not None
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    sharded = torch.load(output)
    for setting in script.SETTINGS:
        parts, gradients = script.parts_and_gradients(str(tiny_checkpoint), setting, slice(0, script.ROWS))
        # float64 throughout; only the order of sums and the padding of a batch differ
        torch.testing.assert_close(sharded[setting][0], parts, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(sharded[setting][1], gradients, rtol=1e-8, atol=1e-10)
