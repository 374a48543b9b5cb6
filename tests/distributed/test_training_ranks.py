"""Every preset and every contrastive loss trains the same model on two ranks as on one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lexforge.training import PRESETS

SCRIPT = Path(__file__).with_name("training_ranks.py")


@pytest.fixture(scope="module")
def trained(
    run_script: Callable[..., None], tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, dict]:
    """What the script saved after training every preset, by the number of ranks."""
    results = {}
    for ranks in (1, 2):
        output = tmp_path_factory.mktemp("ranks") / "results.pt"
        run_script(SCRIPT, tiny_checkpoint, output, ranks=ranks, timeout=800)
        results[ranks] = torch.load(output)
    return results


@pytest.mark.slow
@pytest.mark.timeout(1700)
@pytest.mark.parametrize(
    "setting",
    [
        *PRESETS,
        "plain, wanted terms",
        "infonce",
        "infonce, symmetric",
        "hcl",
        "cosent",
        "moco",
        "nws",
    ],
)
def test_twenty_steps_on_two_ranks_are_those_on_one(setting: str, trained: dict[int, dict]) -> None:
    """Hard negatives, teacher, curriculum, ramp, IDF FLOPS, clipping, AdamW and the schedule together; of a
    contrastive loss its queue, prototypes and momentum encoder. The same parts at every step, the same
    gradients at the first and the last, the same weights at the end.
    """
    joint, one = trained[2][setting], trained[1][setting]
    assert len(one["parts"]) == 20
    assert set(one["gradients"]) == {0, 19}
    # float64 throughout: the order of sums and the padding of a batch differ, and twenty steps of AdamW,
    # which divides by the size of a gradient, carry the difference on.
    torch.testing.assert_close(joint["parts"], one["parts"], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(joint["gradients"][0], one["gradients"][0], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(joint["gradients"], one["gradients"], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(joint["weights"], one["weights"], rtol=1e-7, atol=1e-8)
