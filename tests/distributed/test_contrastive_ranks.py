"""Contrastive losses on two ranks train like one process with the joint batch, queues and prototypes too."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("contrastive_ranks.py")


def load_script():
    specification = importlib.util.spec_from_file_location("contrastive_ranks", SCRIPT)
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
def test_gradients_and_queues_equal_those_of_the_joint_batch(
    setting: str, two_ranks: list[dict], tiny_checkpoint: Path
) -> None:
    """Three steps under DistributedDataParallel; MoCo's queue wraps in the third."""
    script = load_script()
    gradients, state = script.steps_of(str(tiny_checkpoint), setting, slice(0, script.ROWS))
    assert all(any(gradient.any() for gradient in step.values()) for step in gradients)
    for results in two_ranks:
        # float64 throughout; only the order of sums and the padding of a batch differ
        torch.testing.assert_close(results[setting][0], gradients, rtol=1e-7, atol=1e-10)
        torch.testing.assert_close(results[setting][1], state, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("kind", ["moco", "prototypes"])
def test_a_run_of_the_trainer_equals_one_process(
    kind: str, two_ranks: list[dict], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Prototypes drawn apart on each rank start as rank 0's, their gradients are averaged and clipped."""
    expected = load_script().train(str(tiny_checkpoint), tmp_path, kind, 8)
    for results in two_ranks:
        torch.testing.assert_close(results[f"{kind}, whole"], expected, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("kind", ["moco", "prototypes"])
def test_a_run_resumed_on_two_ranks_is_the_run_never_stopped(kind: str, two_ranks: list[dict]) -> None:
    """Bit for bit, and the same on both ranks."""
    for results in two_ranks:
        for name in (f"{kind}, whole", f"{kind}, resumed"):
            torch.testing.assert_close(results[name], two_ranks[0][f"{kind}, whole"], rtol=0, atol=0)
