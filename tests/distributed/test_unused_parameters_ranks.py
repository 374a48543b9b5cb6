"""Models with routes, and models with parameters that get no gradient, train on two ranks as on one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("unused_parameters_ranks.py")


@pytest.mark.timeout(700)
def test_two_ranks_train_as_one_and_find_unused_parameters_only_where_there_are_any(
    run_script: Callable[..., None], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """An inference-free encoder with trained query weights crashed ("mark a variable ready only once"). A
    dense encoder with a pooler needs the search, and one without it does not.
    """
    results = {}
    for ranks in (1, 2):
        run_script(SCRIPT, tiny_checkpoint, tmp_path / f"{ranks}.pt", ranks=ranks, timeout=600)
        results[ranks] = torch.load(tmp_path / f"{ranks}.pt")
    assert {name: result["find_unused"] for name, result in results[2].items()} == {
        "inference-free": False,
        "inference-free, open": False,
        "pooler": True,
        "no pooler": False,
        "no pooler, moco": False,
    }
    for name, result in results[2].items():
        # float64 without dropout: only the order of sums and the padding of a batch differ.
        torch.testing.assert_close(result["weights"], results[1][name]["weights"], rtol=1e-7, atol=1e-9)
