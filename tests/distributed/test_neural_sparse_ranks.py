"""Two ranks of B rows train like one process of 2 B rows."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("neural_sparse_ranks.py")


def load_script():
    specification = importlib.util.spec_from_file_location("neural_sparse_ranks", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def two_ranks(
    run_script: Callable[..., None], tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict:
    """What the script saved after one step on two ranks."""
    output = tmp_path_factory.mktemp("ranks") / "results.pt"
    run_script(SCRIPT, tiny_checkpoint, output, ranks=2)
    return torch.load(output)


@pytest.mark.parametrize("setting", load_script().SETTINGS)
def test_two_ranks_equal_one_process_with_the_joint_batch(
    setting: str, two_ranks: dict, tiny_checkpoint: Path
) -> None:
    """Every part (hard negatives, teacher, IDF FLOPS, left-out candidates, ...) and gradient, under DDP."""
    script = load_script()
    parts, gradients = script.parts_and_gradients(str(tiny_checkpoint), setting, slice(0, script.ROWS))
    joint_parts, joint_gradients = two_ranks[setting]
    assert len(parts) == 9
    assert all(part.item() != 0 for part in parts.values())
    assert all(gradient.any() for gradient in gradients.values())
    # float64 throughout; only the order of sums and the padding of a batch differ
    torch.testing.assert_close(joint_parts, parts, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(joint_gradients, gradients, rtol=1e-8, atol=1e-10)


def test_the_two_operations_by_hand(two_ranks: dict) -> None:
    """Rank r holds rows (1 + r), 10 (1 + r) and weighs its loss by 1 + r: gradients add over both losses."""
    for rank, results in enumerate(two_ranks["operations"]):
        assert results["sum"].tolist() == [[3.0], [30.0]]
        assert results["sum gradient"].tolist() == [[3.0], [3.0]]
        assert results["rows"].tolist() == [[1.0], [10.0], [2.0], [20.0]]
        expected = [[3.0], [6.0]] if rank == 0 else [[9.0], [12.0]]
        assert results["rows gradient"].tolist() == expected


def test_the_trimmed_bias_is_that_of_the_first_rank(two_ranks: dict) -> None:
    """The model must stay equal on all ranks."""
    first, second = two_ranks["trimmed"]
    torch.testing.assert_close(first["bias"], second["bias"], rtol=0, atol=0)
    assert first["reached"].item() == second["reached"].item() == 12.0
