"""NWSLoss on two ranks trains like one process with the joint batch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("nws_ranks.py")


def load_script():
    specification = importlib.util.spec_from_file_location("nws_ranks", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def two_ranks(
    run_script: Callable[..., None], tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[dict]:
    """What the script saved: the results of each rank."""
    output = tmp_path_factory.mktemp("ranks") / "results.pt"
    run_script(SCRIPT, tiny_checkpoint, output, ranks=2)
    return torch.load(output)


@pytest.mark.parametrize("setting", load_script().SETTINGS)
def test_two_ranks_equal_one_process_with_the_joint_batch(
    setting: str, two_ranks: list[dict], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Encoder, prototypes, queue with its labels and moving average after four steps, on both ranks."""
    script = load_script()
    weights, state = script.train(str(tiny_checkpoint), tmp_path, setting, script.JOINT_BATCH)
    assert int(state["queue.enqueued"]) == script.STEPS * script.JOINT_BATCH
    assert state["queue.labels"].any()
    for joint_weights, joint_state in (results[setting] for results in two_ranks):
        # float64 throughout; only the order of sums and the padding of a batch differ
        torch.testing.assert_close(joint_weights, weights, rtol=1e-7, atol=1e-10)
        torch.testing.assert_close(joint_state, state, rtol=1e-7, atol=1e-10)
